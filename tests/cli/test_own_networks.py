"""Networks of a user's own through every command: dicts and tuples of inputs, regression, segmentation."""

import json
import sys

import pytest
import torch

from bayesbits import recipes
from bayesbits.records.front import Front
from tests.cli.invoke import bayesbits

MODULE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
vectors, others, maps = torch.randn(64, 4), torch.randn(64, 3), torch.randn(64, 1, 8, 8)
labels = (vectors[:, :3] + others).argmax(1)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(3, 8), nn.Linear(8, 3)

    def forward(self, first, second):
        return self.head(F.relu(self.a(first) + self.b(second)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        wide = F.relu(self.down(x))
        return self.head(torch.cat([wide, F.interpolate(F.relu(self.up(F.max_pool2d(wide, 2))), scale_factor=2)], 1))


def two():
    return Two()


def regressor():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def unet():
    return UNet()


def twice(inputs, targets):
    return ([(inputs, targets)] * 2,) * 2


def dicts():
    return twice({"first": vectors, "second": others}, labels)


def tuples():
    return twice([vectors, others], labels)


def numbers():
    return twice(vectors, vectors[:, :1].tanh())


def pixels():
    return twice(maps, (maps[:, 0] > 0).long())

"""

QUICK = ["--set", 'spec.preset="onnxruntime"', "--device", "cpu"]
SEARCH = ["--set", "search.epochs=1", *QUICK]
POSTTRAIN = ["--set", "float.epochs=1", *QUICK]


@pytest.fixture(autouse=True)
def users_module(here, monkeypatch):
    (here / "users_networks.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "users_networks", raising=False)


def own(model, data):
    return ["--model", f"users_networks:{model}", "--data", f"users_networks:{data}"]


@pytest.mark.check
def test_every_command_takes_a_dict_of_inputs(here):
    bayesbits("search", *own("two", "dicts"), *SEARCH, "--output", "run")
    assert "head" in bayesbits("plan", "run").stdout
    assert "3 of 3 layers" in bayesbits("verify", "run", "--num-examples", "100").stdout  # which exports first
    assert json.loads((here / "run/verification.json").read_text())["simulated"]["inputs"] == 100
    assert "times float" in bayesbits("bench", "run", "--rounds", "1").stdout
    bayesbits("report", "run")
    options = ["--steps", "1", "--mus", "0.001", "--num-examples", "100", "--output", "bits"]
    assert "100 examples" in bayesbits("posttrain", *own("two", "dicts"), *POSTTRAIN, *options).stdout
    options = ["--bits", "4", "--num-examples", "100", "--output", "alone"]
    assert "head.weight" in bayesbits("sensitivity", *own("two", "dicts"), *POSTTRAIN, *options).stdout


def test_several_inputs_in_a_list_are_given_in_their_order(here):
    bayesbits("search", *own("two", "tuples"), *SEARCH, "--output", "run")
    example = recipes.restore("run", "cpu").loaders.example
    assert [tensor.shape for tensor in example] == [torch.Size([1, 4]), torch.Size([1, 3])]
    assert "3 of 3 layers" in bayesbits("verify", "run", "--num-examples", "100").stdout


def test_a_regression_network_is_shown_by_its_error_everywhere(here):
    refused = bayesbits("search", *own("regressor", "numbers"), *SEARCH, code=1).stderr
    assert "for numbers choose the task regression" in refused
    assert not (here / "runs").exists()
    shown = bayesbits("search", *own("regressor", "numbers"), *SEARCH, "--task", "regression", "--output", "run").stdout
    written = json.loads((here / "run/result.json").read_text())
    assert (written["accuracy"], [one["name"] for one in written["metrics"]]) == (None, ["MSE", "MAE", "R2"])
    page = (here / "run/report.html").read_text()
    for text in (shown, page, bayesbits("plan", "run").stdout):
        assert f"{written['metrics'][0]['value']:.4g}" in text
        assert "lower is better" in text
        assert "accuracy" not in text
    regression = [*own("regressor", "numbers"), *POSTTRAIN, "--task", "regression", "--metric", "mae"]
    found = bayesbits("posttrain", *regression, "--steps", "1", "--mus", "0.001", "--output", "bits")
    (point,) = Front.load(here / "bits/front.json").points
    assert point.score < 0  # the higher the better
    assert f"test MAE {-point.score:.4g}" in found.stderr
    assert "test MAE" in bayesbits("sensitivity", *regression, "--bits", "4", "--output", "alone").stdout
    assert "use labels" in bayesbits("sensitivity", *regression, "--labels", "none", code=1).stderr


def test_a_segmentation_network_is_shown_by_its_mean_iou(here):
    refused = bayesbits("search", *own("unet", "pixels"), *SEARCH, code=1).stderr
    assert "choose the task segmentation" in refused
    segmentation = [*own("unet", "pixels"), "--task", "segmentation"]
    shown = bayesbits("search", *segmentation, *SEARCH, "--output", "run").stdout
    assert "test mean IoU" in shown
    assert "test pixel accuracy" in shown
    assert "Test mean IoU, higher is better" in (here / "run/report.html").read_text()
    options = ["--labels", "none", "--steps", "1", "--mus", "0.001", "--output", "bits"]
    assert "mean IoU on 128 test examples" in bayesbits("posttrain", *segmentation, *POSTTRAIN, *options).stdout


def test_a_search_that_compresses_nothing_says_so_with_the_way_out(here):
    slow = ("--set", "search.gates.lr=0.001")
    shown = bayesbits("search", *own("regressor", "numbers"), *SEARCH, *slow, "--task", "regression")
    assert "search: gates cannot close" in shown.stderr
    assert "Almost nothing was compressed" in shown.stdout
    assert "--set search.gates.lr=0.1" in shown.stdout
    assert "Almost nothing was compressed" in (here / "runs/users_networks.regressor/report.html").read_text()
    assert "report.html" in shown.stdout.split("Written to")[1].split("Almost")[0]
    assert "1x fewer" not in shown.stdout


def test_an_interrupted_run_says_so_in_every_command_and_goes_on_by_its_recipe_alone(here, monkeypatch):
    search = ["search", *own("two", "dicts"), *SEARCH, "--output", "my run"]
    with monkeypatch.context() as patch:
        patch.setattr("bayesbits.recipes.evaluation.measure_by_class", stopped)
        patch.setattr(sys.modules["bayesbits.recipes.stages"], "measure_by_class", stopped)
        told = bayesbits(*search, code=130).stderr
    way = "bayesbits search 'my run/recipe.toml' --resume"
    assert f"Go on with: {way}" in told
    for command, code in (("verify", 1), ("export", 1), ("bench", 1), ("report", 0)):  # the page says it too
        told = bayesbits(command, "my run", code=code).stderr
        assert "is not finished (its last checkpoint is of the stage 'search', and there is no result.json)" in told
        assert "it was interrupted at 2" in told
        assert f"stopped before the end. Go on with: {way}" in told
    assert way in bayesbits(*search, code=1).stderr
    assert way in bayesbits(*search, "--resume", "--set", "search.mu=0.5", code=1).stderr
    bayesbits("search", "my run/recipe.toml", "--resume", "--device", "cpu")
    assert (here / "my run/result.json").exists()
    assert not (here / "runs").exists()
    (here / "my run/result.json").write_text("")
    assert way in bayesbits("plan", "my run", code=1).stderr
    assert way in bayesbits("verify", "my run", code=1).stderr
    bayesbits("search", "my run/recipe.toml", "--resume", "--device", "cpu")
    bayesbits("plan", "my run")


def stopped(*_arguments, **_options):
    raise KeyboardInterrupt
