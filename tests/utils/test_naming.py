"""Names as keys: every name comes back, and no two have one key."""

from hypothesis import given
from hypothesis import strategies as st

from bayesbits.utils.naming import key_of, name_of

PART = st.text("ab/~01", min_size=1, max_size=4)
NAME = st.lists(PART, min_size=1, max_size=3).map(".".join)


def test_plain_names() -> None:
    assert key_of("layer1.0.conv") == "/layer1/0/conv"


@given(NAME, NAME)
def test_names_come_back_and_keys_differ(one: str, other: str) -> None:
    assert name_of(key_of(one)) == one
    assert "." not in key_of(one)
    assert (key_of(one) == key_of(other)) == (one == other)
