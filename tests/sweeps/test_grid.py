"""The runs of a sweep: every combination, in order, with names, and checked before anything runs."""

import pytest

from bayesbits import recipes
from bayesbits.sweeps.grid import Group, make_runs, read_groups, short_keys
from bayesbits.sweeps.settings import axis, read_axes


def load(recipe, overrides, budget):
    return recipes.load(recipe, overrides, budget=budget)


def runs_of(*texts, recipe="digits-lenet5", budgets=()):
    axes = read_axes(texts) + ([axis(["budget"], budgets)] if budgets else [])
    return make_runs([group.with_axes(axes) for group in read_groups([recipe])], load)


def test_every_combination_is_a_run_and_the_first_seed_comes_first():
    runs = runs_of("search.mu=0.01,0.1", "seed=0,1", "spec.bits=[2,4,8],[4,8]", "search.epochs=3")
    found = [(run.recipe.seed, run.recipe.search.mu, run.recipe.spec.bits) for run in runs]
    assert found == [
        (seed, mu, bits) for seed in (0, 1) for mu in (0.01, 0.1) for bits in ((2, 4, 8), (4, 8))
    ]  # fmt: skip
    assert {run.recipe.search.epochs for run in runs} == {3}
    assert runs[0].settings == {"search.mu": 0.01, "spec.bits": [2, 4, 8]}
    assert runs[0].name == "digits-lenet5-mu=0.01-bits=_2,_4,_8-seed=0"
    assert runs[0].label == "mu=0.01, bits=[2, 4, 8], seed=0"
    assert len({run.name for run in runs}) == len(runs)


def test_what_does_not_vary_is_not_in_names():
    (run,) = runs_of("search.mu=0.1", "data.folder=/a/b")
    assert (run.name, run.label, run.settings) == ("digits-lenet5-seed=0", "seed=0", {})


def test_keys_are_short_where_they_stay_distinct():
    assert short_keys(["search.mu", "search.gates.lr", "finetune.epochs"]) == ["mu", "gates.lr", "finetune.epochs"]
    assert short_keys(["search.gates", "spec.gates", "spec.bits"]) == ["search.gates", "spec.gates", "bits"]


def test_budgets_are_an_axis_and_replace_the_weight_of_the_penalty():
    runs = runs_of(budgets=["0.5% bops, 500 kB", "1% bops"])
    assert [str(run.recipe.search.budget) for run in runs] == ["0.5% bops, 500 kB", "1% bops"]
    assert all(run.recipe.search.mu is None for run in runs)
    assert runs[1].name == "digits-lenet5-budget=1%_bops-seed=0"


def test_methods_are_an_axis_of_the_spec():
    """Whatever methods there are: the value reaches the spec, which knows the names."""
    with pytest.raises(ValueError, match=r"no run was started(.|\n)*\bmethod\b"):
        runs_of("spec.method=bayesian_bits,no_such_method")


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(ValueError, match="no run was started") as caught:
        runs_of("search.mu=0.01,-1", "data.batch_size=64,0", "seed=0,1,2")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3  # each once, not for every seed
    assert sum("SearchConfig.mu is -1" in line for line in lines) == 1
    assert sum("DataConfig.batch_size is 0" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model.name=lenet5,lenet6", "the zoo has no network named 'lenet6'"),
        ("data.name=digits,fingers", "data.name is 'fingers'; it is one of"),
        ("model.checkpoint=none.pth", "not both|none.pth is not there"),
        ("serch.mu=1,2", "serch is not known; did you mean search"),
    ],
)
def test_names_are_checked_before_anything_runs(text, said):
    with pytest.raises(ValueError, match=said):
        runs_of(text)


def test_a_missing_recipe_is_named():
    with pytest.raises(ValueError, match=r"there is no recipe 'digit-lenet5'.*did you mean 'digits-lenet5'"):
        runs_of(recipe="digit-lenet5")


def test_several_recipes_are_part_of_labels():
    groups = [group.with_axes(read_axes(["seed=0,1"])) for group in read_groups(["digits-lenet5", "mnist-lenet5"])]
    assert [run.label for run in make_runs(groups, load)] == [
        "digits-lenet5, seed=0", "digits-lenet5, seed=1", "mnist-lenet5, seed=0", "mnist-lenet5, seed=1",
    ]  # fmt: skip


FILE = """
[[runs]]
recipe = "digits-lenet5"
seeds = [0, 1]
set.search.epochs = 7
grid.search.mu = [0.01, 0.1]
grid.search.weights = [{ lr = 0.1 }, { lr = 0.2, optimizer = "sgd" }]

[[runs]]
recipe = "mine.toml"
budgets = ["1% bops"]
set."search.epochs" = 5

[[runs]]
recipe = "digits-lenet5"
set.search.epochs = 9
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.toml").write_text('[data]\nname = "digits"\n[model]\nname = "lenet5"\n')
    path = tmp_path / "runs.toml"
    path.write_text(FILE)
    return path


def test_a_file_lists_groups_of_runs(file):
    runs = make_runs(read_groups([str(file)]), load)
    assert len(runs) == 2 * 2 * 2 + 1 + 1
    assert [run.recipe.search.epochs for run in runs] == [7] * 8 + [5, 9]
    assert (runs[8].recipe.name, str(runs[8].recipe.search.budget)) == ("mine", "1% bops")
    assert runs[3].recipe.search.weights.optimizer == "sgd"
    assert runs[9].settings == {"search.epochs": 9}  # in which it differs from the other group of this recipe
    assert runs[9].name == "digits-lenet5-epochs=9-seed=0"


def test_options_of_the_command_line_replace_those_of_the_file(file):
    groups = [
        group.with_axes(read_axes(["seed=5", "search.epochs=1", "search.mu=0.5"])) for group in read_groups([str(file)])
    ]
    groups = [groups[0]]
    runs = make_runs(groups, load)
    assert [(run.recipe.seed, run.recipe.search.epochs, run.recipe.search.mu) for run in runs] == [(5, 1, 0.5)] * 2


def test_equal_runs_of_several_groups_are_one(file):
    file.write_text(
        '[[runs]]\nrecipe = "digits-lenet5"\nseeds=[0, 1]\n[[runs]]\nrecipe = "digits-lenet5"\nset.search.mu=0.01\n'
    )
    assert [run.recipe.seed for run in make_runs(read_groups([str(file)]), load)] == [0, 1]


def test_names_stay_distinct_where_settings_look_alike():
    runs = runs_of('data.folder="a b","a_b","A_b"')
    assert len({run.name.lower() for run in runs}) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[runs]]\nrecipe = 'x'\nseed = [1]", r"number 1: seed is not known; it has recipe, seeds"),
        ("[[runs]]\nseeds = [1]", "recipe is missing"),
        ("[[runs]]\nrecipe = 'x'\nseeds = 3", "seeds is 3; it is a list of values"),
        ("[[runs]]\nrecipe = 'x'\ngrid.search.mu = 3", "grid.search.mu is 3; it is a list of values"),
        ("[[runs]]\nrecipe = 'x'\ngrid.search.mu = []", r"grid.search.mu is \[\]; it is a list of values"),
        ("[[runs]]\nrecipe = 'x'\nset = 3", "set is 3; it is a table"),
        ("[[runs]]\nrecipe = 'x'\nseeds = [1, 1]", "number 1: seed has the value 1 twice"),
        ("[[runs]]\nrecipe = 'x'\n[data]\nname='digits'", "neither a recipe nor a file of runs: it has 'data' beside"),
        ("runs = 3", "another form of"),
        ("runs = ", "is not TOML"),
    ],
)
def test_a_file_of_runs_that_is_wrong_is_refused(tmp_path, text, said):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_groups([str(path)])


def test_a_group_without_axes_is_one_run():
    assert list(Group("x").combinations()) == [()]
