"""Running a recipe from its data to its result, stopped anywhere or not."""

import json
import signal
from pathlib import Path

import pytest
import torch.nn.functional as F

import bayesbits as bb
from bayesbits import recipes
from bayesbits.recipes.evaluation import accuracy
from bayesbits.training import Interrupted
from bayesbits.training.metrics import read_metrics
from tests.recipes.made_data import SHORT_DIGITS, made_for

FIELDS = {"recipe", "method", "mu", "seed", "epochs", "accuracy", "relative_bops", "layers", "seconds", "device"}
FIELDS |= {"versions", "float_accuracy", "paper_relative_bops"}


def run(recipe, folder, **options):
    return recipes.run(recipe, folder, device="cpu", progress=False, **options)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A short run that nothing disturbed: its folder, result, and what it said."""
    folder, said = tmp_path_factory.mktemp("digits"), []
    return folder, run(recipes.load("digits-lenet5", SHORT_DIGITS), folder, say=said.append), said


def test_a_run_leaves_everything_that_it_came_to(digits):
    folder, result, said = digits
    names = {path.name for path in folder.iterdir()}
    assert names >= {"recipe.toml", "result.json", "plan.json", "topology.json", "model.safetensors", "metrics.jsonl"}
    written = json.loads((folder / "result.json").read_text())
    assert written.keys() >= FIELDS
    assert recipes.Result.load(folder / "result.json") == result
    assert (result.recipe, result.method, result.mu, result.seed) == ("digits-lenet5", "bayesian_bits", 0.01, 0)
    assert (result.float_epochs, result.epochs, result.finetune_epochs) == (1, 2, 1)
    assert recipes.load(folder / "recipe.toml") == recipes.load("digits-lenet5", SHORT_DIGITS)
    assert {line["phase"] for line in read_metrics(folder / "metrics.jsonl")} == {"float", "search", "finetune"}
    assert result.seconds > 0
    assert list(result.executions) == ["float", "search", "finetune"]
    assert result.executions["search"].not_compiled == "compile is false"
    assert said[0] == f"float network: accuracy {result.float_accuracy:.2f}% on the test set"
    assert f"before fine-tuning: accuracy {result.search_accuracy:.2f}% on the test set" in said
    for accuracies, whole in (
        (result.class_accuracies, result.accuracy),
        (result.float_class_accuracies, result.float_accuracy),
    ):  # the test set has almost as many images of each digit
        assert len(accuracies) == 10
        assert sum(accuracies) / 10 == pytest.approx(whole, abs=1.0)
    assert result.class_accuracies != result.float_class_accuracies


def test_the_final_network_is_restored_with_its_decisions(digits):
    folder, result, _ = digits
    restored = recipes.restore(folder, device="cpu")
    assert accuracy(restored.compressor.model, restored.loaders.test) == result.accuracy
    assert restored.compressor.plan() == restored.plan == bb.Plan.load(folder / "plan.json")
    assert restored.compressor.cost().relative_bops == result.relative_bops
    assert [group["name"] for group in restored.compressor.parameter_groups()] == ["weights", "ranges"]
    bits = {layer["name"]: layer["weight_bits"] for layer in result.layers}
    assert bits == {layer.name: restored.plan.bits[layer.parameter] for layer in restored.compressor.topology.layers}


@pytest.mark.parametrize("stops", [(2,), (5, 9)])
def test_a_run_that_was_interrupted_ends_like_one_that_was_not(digits, stops, tmp_path, monkeypatch):
    """Stopped in float training; in the search, and after going on in the fine-tuning. A start tries the loss once."""
    calls, cross_entropy = 0, F.cross_entropy

    def interrupted(*arguments):
        nonlocal calls
        calls += 1
        if calls in stops:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(*arguments)

    recipe = recipes.load("digits-lenet5", SHORT_DIGITS)
    monkeypatch.setattr(F, "cross_entropy", interrupted)
    for _ in stops:
        with pytest.raises(Interrupted):
            run(recipe, tmp_path, resume=True)
        assert not (tmp_path / "result.json").exists()
    resumed = run(recipe, tmp_path, resume=True)
    folder, result, _ = digits
    assert calls == 2 + 4 + 2 + len(stops) + 1
    for name in ("model.safetensors", "float.safetensors", "plan.json", "recipe.toml"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert (resumed.accuracy, resumed.float_accuracy, resumed.layers) == (
        result.accuracy,
        result.float_accuracy,
        result.layers,
    )
    assert run(recipe, tmp_path, resume=True) == resumed  # finished: nothing is done again
    assert calls == 2 + 4 + 2 + len(stops) + 1


def test_a_folder_with_another_run_is_left_alone(digits):
    folder, _, _ = digits
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="holds a run of digits-lenet5 already"):
        run(recipes.load("digits-lenet5", SHORT_DIGITS), folder)
    with pytest.raises(ValueError, match=r"holds another run: search.mu was 0.01 there and is 0.5 now"):
        run(recipes.load("digits-lenet5", [*SHORT_DIGITS, "search.mu=0.5"]), folder, resume=True)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_a_damaged_network_is_refused(digits, tmp_path):
    folder, _, _ = digits
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[: 1000 if path.suffix == ".safetensors" else None])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged"):
        recipes.restore(tmp_path, device="cpu")
    (tmp_path / "result.json").unlink()
    with pytest.raises(FileNotFoundError, match="a run that is not finished"):
        recipes.restore(tmp_path, device="cpu")


def test_photographs_and_a_checkpoint_with_a_teacher(tmp_path):
    overrides = made_for("imagenet-resnet18", tmp_path)
    short = ["search.epochs=1", "finetune.epochs=1", "finetune.distillation=0.5", "data.validation=2"]
    said: list[str] = []
    result = run(recipes.load("imagenet-resnet18", [*overrides, *short]), tmp_path / "run", say=said.append)
    stages = ["float network", "search", "search", "search", "before fine-tuning", "finetune"]
    assert [line.split(":")[0] for line in said] == stages
    assert "compile, cuda_graph ignored" in said[1]
    assert result.float_accuracy is not None
    validated = [line for line in read_metrics(tmp_path / "run/metrics.jsonl") if line["event"] == "evaluate"]
    assert [line["phase"] for line in validated] == ["search", "finetune"]
    assert all("validation_accuracy" in line for line in validated)


def test_trained_weights_are_asked_for_before_anything_else(tmp_path):
    with pytest.raises(ValueError, match=r"starts from trained weights.*model.checkpoint"):
        run(recipes.load("imagenet-resnet18"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


USERS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def network(width=4):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))

def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 6, generator=generator)
    labels = inputs[:, :3].argmax(1)
    loaders = [DataLoader(TensorDataset(inputs, labels), 16, shuffle=shuffle) for shuffle in (True, False)]
    return tuple(loaders)

def iterators():
    return tuple(map(iter, data()))

def nothing():
    return None

def raises():
    raise KeyError("no such thing")

def grid():
    return nn.Conv2d(3, 3, 1)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's in the working directory."""
    (tmp_path / "users_own.py").write_text(USERS)
    monkeypatch.chdir(tmp_path)
    return Path(tmp_path)


def test_a_users_own_network_and_data(mine):
    recipe = recipes.load(
        None, ["search.epochs=1", "model.options.width=5"], model="users_own:network", data="users_own:data"
    )
    said: list[str] = []
    result = run(recipe, mine / "run", say=said.append)
    assert [layer["channels_out"] for layer in result.layers] == [5, 3]
    assert result.float_accuracy is None
    assert said[0] == "the search starts from scratch"
    assert 0 <= result.accuracy <= 100


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        ("users_own:netwrk", "users_own:data", "no function 'netwrk'; did you mean users_own:network"),
        ("users_owned:network", "users_own:data", "there is no module 'users_owned'"),
        ("users_own:", "users_own:data", "a function is named package.module:function"),
        ("users_own:nothing", "users_own:data", "returned a NoneType; it returns a torch.nn.Module"),
        ("users_own:raises", "users_own:data", "raised KeyError: 'no such thing'"),
        ("users_own:network", "users_own:nothing", r"returned a NoneType; it returns a bayesbits.zoo.data.Data, or"),
        ("users_own:network", "users_own:iterators", "iterables that start again for every epoch"),
    ],
)
def test_factories_that_do_not_give_what_is_asked_are_named(mine, model, data, said):
    with pytest.raises(ValueError, match=said):
        run(recipes.load(None, model=model, data=data), mine / "run")


def test_an_unreachable_budget_stops_a_run_before_the_float_network_is_trained(tmp_path):
    recipe = recipes.load("digits-lenet5", SHORT_DIGITS, budget="0.0001% bops")
    with pytest.raises(bb.BudgetError, match="cannot be reached"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
