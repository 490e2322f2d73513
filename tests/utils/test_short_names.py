"""Names lose their middle or become initials, and stay apart."""

from hypothesis import given
from hypothesis import strategies as st

from bayesbits.utils.short_names import list_names, shorten_names

NAMES = ["classifier.1", "classifier.3", *(f"encoder.layers.{place}.attention.self.query" for place in (10, 11))]


def test_names_are_cut_in_the_middle_and_stay_apart():
    assert shorten_names(["short", "a.very.long.name.of.a.layer.1"], 14) == ["short", "a.v....layer.1"]
    assert shorten_names(NAMES[2:], 18) == ["e.l.10.a.s.query", "e.l.11.a.s.query"]
    assert shorten_names(["short", "a.very.long.name.of.a.layer.1"], 12, "…") == ["short", "a.v….layer.1"]


def test_where_short_names_would_be_the_same_they_are_only_as_long_as_needed():
    same = ["part_one_of_it.abcdefghijklm", "part_two_of_it.abcdefghijklm"]
    first, second = shorten_names(same, 12)
    assert first != second
    assert len(first) < len(same[0])


def test_long_lists_of_names_end_with_a_number():
    assert list_names(["a", "b", "c"]) == "a, b, c"
    assert list_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


@given(st.lists(st.text("ab.1", min_size=1, max_size=30), min_size=1, max_size=12, unique=True), st.integers(4, 20))
def test_no_two_names_become_one(names, length):
    short = shorten_names(names, length)
    assert len(set(short)) == len(names)
    assert all(len(one) <= max(len(name), length) for one, name in zip(short, names, strict=True))
