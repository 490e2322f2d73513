"""Recipes from TOML: what is accepted, what is refused, and how the refusal reads."""

from dataclasses import replace

import pytest
import torch

import bayesbits as bb
from bayesbits import recipes
from bayesbits.recipes.toml import options_from, to_table
from tests.latency_tables import made_up_table

SMALL = '[data]\nname = "digits"\n[model]\nname = "lenet5"\n'


def refusal(overrides, recipe="digits-lenet5"):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the text is what is tested)
        recipes.load(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_written_out_reads_as_the_same_recipe(name, tmp_path):
    for overrides in ([], ['spec.rules."fc.*".min_bits=8', "spec.residual_bits=learned", "data.options.a=[1, 2]"]):
        recipe = recipes.load(name, overrides)
        path = tmp_path / "recipe.toml"
        path.write_text(recipes.to_toml(recipe))
        assert recipes.load(path) == recipe


def test_what_a_file_does_not_say_is_the_default(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    recipe = recipes.load(path)
    assert recipe.name == "mine"
    assert (recipe.spec, recipe.search) == (bb.Spec(), bb.SearchConfig())
    assert recipe.float_training is None
    assert recipe.finetune is None


def test_overrides_are_toml_and_text_where_they_are_not():
    recipe = recipes.load(
        "digits-lenet5",
        [
            "search.mu=0.5",
            "search.weights={optimizer='sgd', lr=0.1}",
            "spec.bits=[4, 8]",
            'spec.rules."classifier.*".min_bits=8',
            "data.folder=/some/where else",
            "seed=7",
        ],
    )
    assert recipe.search.mu == 0.5
    assert (recipe.search.weights.optimizer, recipe.search.weights.lr) == ("sgd", 0.1)
    assert recipe.search.epochs == recipes.load("digits-lenet5").search.epochs
    preset = bb.Spec.for_backend("onnxruntime")
    assert recipe.spec == replace(preset, bits=(4, 8), rules={"classifier.*": bb.Rule(min_bits=8)})
    assert recipe.data.folder == "/some/where else"
    assert {recipe.seed, recipe.search.seed, recipe.float_training.seed, recipe.finetune.seed} == {7}


def test_an_optimizer_given_in_part_keeps_the_rest_of_its_stage():
    recipe = recipes.load("digits-lenet5", ["finetune.weights.lr=0.5"])
    assert recipe.finetune.weights == bb.OptimizerConfig(lr=0.5, schedule="cosine")


def test_presets_come_before_the_other_fields():
    assert recipes.load("cifar10-vgg7").spec == bb.Spec.paper()
    assert recipes.load("mnist-lenet5").spec == replace(bb.Spec.paper(), input_bits="learned")
    for activations in ("static", "dynamic", "float"):
        spec = recipes.load("digits-lenet5", ["spec.preset=onnxruntime", f"spec.activations={activations}"]).spec
        ours = bb.Spec.for_backend("onnxruntime", activations=activations)
        assert spec == replace(ours, bits=spec.bits, rules=spec.rules)
    asked = ["spec.preset=onnxruntime", "spec.activations=float", "spec.group_size=64"]
    assert recipes.load("digits-lenet5", asked).spec.group_size == 64
    assert 'for the backend "onnxruntime"' in refusal(["spec.preset=openvino", "spec.activations=dynamic"])
    spec = recipes.load("digits-lenet5", ["spec.preset=onnxruntime", "spec.bits=[8]"]).spec
    assert (spec.bits, spec.channel_multiple) == ((8,), 8)
    assert "preset is 'papre'; it is one of paper, onnxruntime, openvino, tensorrt" in refusal(["spec.preset=papre"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("search.epoch=3", "search.epoch is not known; did you mean search.epochs?"),
        ("serch.mu=1", "serch is not known; did you mean search?"),
        ("search.gates.rat=1", "search.gates.rat is not known; did you mean search.gates.lr?"),
        ('spec.rules."fc".bit=3', 'spec.rules."fc".bit is not known; did you mean spec.rules."fc".bits?'),
        ("float.ranges.lr=1", "float.ranges is not known"),
        ("search.seed=1", "the seed stands at the top of a recipe"),
        ("search.mu=0,1", "[search]: SearchConfig.mu is '0,1'; it is a number"),
        ("search.gates.lr=-1", "[search.gates]: OptimizerConfig.lr is -1"),
        ("search.weights=3", "SearchConfig.weights is 3; it is an OptimizerConfig"),
        ("spec.bits=[4, 2]", "[spec]: Spec.bits is [4, 2]; the widths increase"),
        ("spec=3", "spec is 3; it is a table, [spec]"),
        ("data.flip=1", "[data]: DataConfig.flip is 1; it is True or False"),
        ("data.batch_size=0", "[data]: DataConfig.batch_size is 0; it is an integer of at least 1"),
        ("model.checkpoint=x", "the float network is loaded or trained, not both"),
    ],
)
def test_what_is_wrong_is_named_with_the_recipe_and_the_key(override, said):
    message = refusal([override])
    assert message.startswith("recipe digits-lenet5: ")
    assert said in message


@pytest.mark.parametrize(
    ("override", "new"),
    [
        ("search.weights.rate=1", "search.weights.lr"),
        ("search.rate=1", "search.gates.lr or search.ranges.lr or search.weights.lr"),
        ("search.gates={kind='sgd'}", "search.gates.optimizer"),
        ("finetune.kind=sgd", "finetune.ranges.optimizer or finetune.weights.optimizer"),
        ("data.standardise=false", "data.standardize"),
        ("spec.examples=100", "spec.num_examples"),
    ],
)
def test_keys_of_the_version_before_are_refused_with_their_new_names(override, new):
    key = override.partition("=")[0] + (".kind" if "{" in override else "")
    assert f"recipe digits-lenet5: {key} is not known; did you mean {new}?" in refusal([override])


def test_a_file_of_the_version_before_is_refused_with_the_new_key(tmp_path):
    path = tmp_path / "recipe.toml"
    for old, new in (("rate = 0.1", "lr"), ('kind = "sgd"', "optimizer")):
        path.write_text(f"{SMALL}[search.weights]\n{old}\n")
        key = old.split()[0]
        assert refusal([], path).startswith(
            f"{path}: search.weights.{key} is not known; did you mean search.weights.{new}?"
        )


def test_a_recipe_is_written_with_settings_that_toml_has_no_value_for(tmp_path):
    """None is left out, except where it means something else than the default; texts may hold anything."""
    overrides = ["spec.residual_bits=none", "spec.bits=[4, 8]", "search.epoch_steps=3", "search.weights.lr=1e-5"]
    recipe = recipes.load("digits-lenet5", [*overrides, "description='a \"quoted\" \\ text'"])
    table = to_table(recipe)
    assert table["spec"]["residual_bits"] == "none"
    assert "num_examples" not in table["spec"]
    assert "seed" not in table["search"]
    assert table["float"].keys().isdisjoint({"seed", "ranges", "distillation", "temperature"})
    path = tmp_path / "recipe.toml"
    path.write_text(recipes.to_toml(recipe))
    assert recipes.load(path) == recipe
    assert recipe.description == 'a "quoted" \\ text'


def test_none_stands_for_what_has_no_value_in_any_part():
    """TOML has no null; the commands that `experiments.keep` writes have it, too."""
    name = "cifar10-vgg7-distilled"
    assert recipes.load(name).search.calibration_bits == 2
    assert recipes.load(name, ["search.calibration_bits=none"]).search.calibration_bits is None
    with pytest.raises(ValueError, match=r"\[search\]: SearchConfig.epochs is None; it is an integer"):
        recipes.load(name, ["search.epochs=none"])


def test_overrides_are_merged_into_one_table():
    assert options_from(["a.b=1", "a.c=two words", "a.b=[3]"]) == {"a": {"b": [3], "c": "two words"}}


def test_an_override_that_is_none_is_refused():
    assert "the override 'search.mu' has no '='" in refusal(["search.mu"])
    assert "has a key that is not TOML" in refusal(["search mu=1"])


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no recipe 'digit-lenet5'.*did you mean 'digits-lenet5'"):
        recipes.load("digit-lenet5")
    with pytest.raises(FileNotFoundError, match=r"it is a folder, and the recipe of a run is .*/recipe\.toml\. The"):
        recipes.load(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text("[data\n")
    assert f"{path} is not TOML" in refusal([], path)
    path.write_text(SMALL.replace("[model]", "[search]"))
    assert f"{path}: search.name is not known" in refusal([], path)
    path.write_text('[data]\nname = "digits"\n')
    assert f"{path}: model.name is missing" in refusal([], path)


def test_factories_take_the_place_of_a_recipes_own_network_and_data():
    recipe = recipes.load("cifar10-resnet18", ["model.options.depth=3"], model="mine:network", data="mine:loaders")
    assert recipe.model == recipes.ModelConfig("mine:network", options={"depth": 3})
    assert recipe.data == recipes.DataConfig("mine:loaders")
    assert recipe.search == recipes.load("cifar10-resnet18").search
    assert recipes.load(None, model="mine:network", data="mine:loaders").search == bb.SearchConfig()
    with pytest.raises(ValueError, match="neither a recipe nor both a model and data"):
        recipes.load(None, model="mine:network")


def test_a_latency_table_is_read_and_found_again_beside_a_recipe(tmp_path):
    table = made_up_table(bb.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4)))
    table.save(tmp_path / "mine.json")
    recipe = recipes.load("digits-lenet5", budget="2.5 ms", latency_table=tmp_path / "mine.json")
    assert recipe.search.budget == bb.Budget(latency_ms=2.5, table=table)
    (tmp_path / "recipe.toml").write_text(recipes.to_toml(recipe))
    assert recipes.load(tmp_path / "recipe.toml").search == recipe.search
    (tmp_path / "mine.json").rename(tmp_path / "latency_table.json")
    assert recipes.load(tmp_path / "recipe.toml").search.budget == recipe.search.budget
    (tmp_path / "latency_table.json").unlink()
    with pytest.raises(ValueError, match=r"there is no file .*mine.json"):
        recipes.load(tmp_path / "recipe.toml")


def test_another_method_brings_its_own_optimizer_in_the_place_of_the_recipes(tmp_path):
    """mnist-lenet5 has the paper's `ranges`, with which the gradient scale of LSQ would have no effect."""
    assert recipes.load("mnist-lenet5").search.ranges.lr == 1e-3
    for method in ("lsq", "tqt", "lrnet", "lrnet_binary"):
        assert recipes.load("mnist-lenet5", [f"spec.method={method}"]).search.ranges is None
    assert recipes.load("mnist-lenet5", ["spec.method=pact"]).search.ranges.lr == 1e-3  # it has none of its own
    with pytest.raises(ValueError, match=r"Spec\.method is"):
        recipes.load("mnist-lenet5", ["spec.method=[1]"])
    said = recipes.load("mnist-lenet5", ["search.ranges={lr=0.5}", "spec.method=lsq"])
    assert said.search.ranges.lr == 0.5
    (tmp_path / "recipe.toml").write_text(recipes.to_toml(said))
    assert recipes.load(tmp_path / "recipe.toml", ["spec.method=lsq"]) == said  # the recipe's own method
    for other in ("bayesian_bits", "pact", "tqt"):  # which the ranges of LSQ are not for
        assert recipes.load(tmp_path / "recipe.toml", [f"spec.method={other}"]).search.ranges is None


def test_a_budget_takes_the_place_of_mu_and_of_the_rates_of_gates(tmp_path):
    recipe = recipes.load("digits-lenet5", budget="0.5% bops, 500 kB")
    assert recipe.search.budget == bb.Budget(relative_bops=0.5, weight_bytes=500_000)
    assert recipe.search.mu is None
    assert recipe.search.gates is None
    assert recipe.search.epochs == 20
    (tmp_path / "recipe.toml").write_text(recipes.to_toml(recipe))
    assert 'budget = "0.5% bops, 500 kB"' in (tmp_path / "recipe.toml").read_text()
    assert recipes.load(tmp_path / "recipe.toml") == recipe
    own = recipes.load("mnist-lenet5", budget="1 kB")
    assert own.search.gates is None  # the recipe has the paper's rate
    own = recipes.load("mnist-lenet5", ["search.gates.lr=0.03"], budget="1 kB")
    assert own.search.gates.lr == 0.03
    for options in ({"overrides": ["search.mu=0.1"], "budget": "1 kB"}, {"overrides": ["search.budget=1 kB"]}):
        with pytest.raises(ValueError, match=r"\[search\]: SearchConfig.mu is .*give one of them"):
            recipes.load("digits-lenet5", **options)
    with pytest.raises(ValueError, match=r"\[search\]: SearchConfig.budget: the budget '4' does not say of what"):
        recipes.load("digits-lenet5", budget="4")
