"""Tables as TOML: what is written is read back as it was, and what TOML does not have is named."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesbits.recipes.toml_text import table_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
PLAIN = st.booleans() | NUMBERS | TEXTS
TABLES = st.recursive(
    st.dictionaries(TEXTS, PLAIN | st.lists(PLAIN)),
    lambda inner: st.dictionaries(TEXTS, PLAIN | inner | st.lists(inner | PLAIN)),
    max_leaves=20,
)


@given(TABLES)
def test_what_is_written_is_read_back_as_it_was(table):
    found = tomllib.loads(table_text(table))
    assert found == table
    assert repr(found) == repr(_in_the_order_of_the_text(table))  # 1, 1.0 and true are equal, and differ here


def _in_the_order_of_the_text(table):
    """Plain values before tables."""
    if not isinstance(table, dict):
        return [_in_the_order_of_a_list(one) for one in table] if isinstance(table, list) else table
    entries = sorted(table.items(), key=lambda entry: isinstance(entry[1], dict))
    return {key: _in_the_order_of_the_text(value) for key, value in entries}


def _in_the_order_of_a_list(value):
    """A table inside of a list stands in one line, in its own order."""
    if isinstance(value, dict):
        return {key: _in_the_order_of_a_list(one) for key, one in value.items()}
    return [_in_the_order_of_a_list(one) for one in value] if isinstance(value, list) else value


def test_the_text_has_a_heading_for_each_table_and_an_inline_table_in_a_list():
    table = {"data": {"name": "x", "crop": {"size": 2}}, "seed": 0, "rules": [{"bits": [2, 4]}], "empty": {}}
    assert table_text(table) == (
        'seed = 0\nrules = [{bits = [2, 4]}]\n\n[data]\nname = "x"\n\n[data.crop]\nsize = 2\n\n[empty]\n'
    )


def test_a_value_that_toml_does_not_have_is_named():
    with pytest.raises(TypeError, match=r"^search\.mu is None, a NoneType"):
        table_text({"search": {"mu": None}})
