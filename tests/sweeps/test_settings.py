"""Settings with several values: where the values are separated, and where a comma belongs to one."""

import pytest

from bayesbits.sweeps.settings import Setting, axis, leaves, read_axes, read_axis, split_values


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0.01", ["0.01"]),
        ("0.01, 0.1,1", ["0.01", "0.1", "1"]),
        ("[2, 4, 8],[4,8]", ["[2, 4, 8]", "[4,8]"]),
        ("[[1,2],[3,4]],[[5,6]]", ["[[1,2],[3,4]]", "[[5,6]]"]),
        ("{lr=0.1, optimizer='a,b'},{lr=1}", ["{lr=0.1, optimizer='a,b'}", "{lr=1}"]),
        ('"0.5% bops, 2 kB","1% bops"', ['"0.5% bops, 2 kB"', '"1% bops"']),
        (r'"a\",b",c', [r'"a\",b"', "c"]),
        (r'"a\\",b', [r'"a\\"', "b"]),
        ("'a\\',b", ["'a\\'", "b"]),  # a literal string has no escapes
        ("it's,hers", ["it's", "hers"]),
        ('["]",2],3', ['["]",2]', "3"]),
        ("", [""]),
        ("a,", ["a", ""]),
    ],
)
def test_commas_outside_of_brackets_braces_and_quotes_separate_values(text, parts):
    assert split_values(text) == parts


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("search.mu=0.01,0.1", "search.mu", [0.01, 0.1]),
        ("spec.bits=[2,4,8],[4,8]", "spec.bits", [[2, 4, 8], [4, 8]]),
        ("spec.method=lsq,pact", "spec.method", ["lsq", "pact"]),
        ("data.folder=/some/where else", "data.folder", ["/some/where else"]),
        ('data.folder="a,b"', "data.folder", ["a,b"]),
        ("search.weights={lr=1},{lr=2, optimizer='a'}", "search.weights", [{"lr": 1}, {"lr": 2, "optimizer": "a"}]),
        ('spec.rules."fc.*".bits=4,8', 'spec.rules."fc.*".bits', [4, 8]),
        ("seed=0,1", "seed", [0, 1]),
        ("data.folder=", "data.folder", [""]),
    ],
)  # fmt: skip
def test_an_option_is_an_axis_of_toml_values(text, key, values):
    found = read_axis(text)
    assert found.key == key
    assert [one.value for one in found.settings] == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("search.mu=0.1,", "has an empty value"),
        ("search.mu=0.1,,0.2", "has an empty value"),
        ("search.mu=0.1,0.1", "search.mu has the value 0.1 twice"),
        ("search.mu=0.1,0.10", "search.mu has the value 0.1 twice"),
        ("search.mu", "has no '='"),
        ("search mu=1", "has a key that is not TOML"),
    ],
)
def test_what_is_no_axis_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        read_axis(text)


def test_a_key_is_given_once():
    with pytest.raises(ValueError, match=r"search\.mu is given twice; .* search\.mu=A,B"):
        read_axes(["search.mu=1", "seed=0", "search . mu=2"])
    assert [found.key for found in read_axes(["search.mu=1", "seed=0"])] == ["search.mu", "seed"]


def test_a_setting_is_a_table_that_overrides_a_recipe():
    setting = Setting(("spec", "rules", "fc.*", "bits"), 4)
    assert setting.table == {"spec": {"rules": {"fc.*": {"bits": 4}}}}
    assert setting.key == 'spec.rules."fc.*".bits'
    assert Setting(("search", "weights"), {"lr": 0.1}).text == '{"lr": 0.1}'
    assert Setting(("data", "folder"), "a b").text == "a b"
    assert axis(["seed"], [0, 1]).settings == (Setting(("seed",), 0), Setting(("seed",), 1))


def test_tables_within_tables_are_taken_apart():
    table = {"search": {"mu": 1, "weights": {"lr": 2}}, "data.folder": "x", "spec": {"rules": {"a.b": {"bits": 8}}}}
    assert {one.path: one.value for one in leaves(table)} == {
        ("search", "mu"): 1,
        ("search", "weights", "lr"): 2,
        ("data", "folder"): "x",
        ("spec", "rules", "a.b", "bits"): 8,
    }
    assert leaves({"data": {"options": {}}}) == [Setting(("data", "options"), {})]
