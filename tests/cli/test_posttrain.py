"""Post-training and its baseline from the command line, on digits."""

import re

import pytest
import torch

import bayesbits as bb
from bayesbits import recipes
from bayesbits.baselines import Sensitivity
from bayesbits.baselines.measurement import Measurement
from bayesbits.zoo import models
from tests.cli.test_commands import bayesbits
from tests.recipes.made_data import SHORT_DIGITS

SHORT = [part for override in SHORT_DIGITS for part in ("--set", override)]
RUN = ["digits-lenet5", *SHORT, "--examples", "100", "--device", "cpu", "--out", "run"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_front_is_shown_and_every_point_of_it_can_be_restored(here):
    shown = bayesbits("posttrain", *RUN, "--steps", "2", "--labels", "none", "--learn", "gates").stdout
    front = bb.Front.load(here / "run/front.json")
    assert "gates, learned on 100 examples" in shown
    for point in front.points:
        assert f"mu = {point.mu:g}" in shown
        assert f"{point.score:.2f}%" in shown
    trained = recipes.trained_network(recipes.load(here / "run/recipe.toml"), here / "run", device="cpu")
    compressor = bb.attach(trained.model, trained.loaders.example, bb.Spec(prune=False, gates="hard_sigmoid"))
    bb.restore(compressor, front.points[0])
    assert compressor.cost().relative_bops == front.points[0].relative_bops


def test_weights_from_a_file_take_the_place_of_training(here):
    torch.manual_seed(0)
    torch.save(models.create("lenet5").state_dict(), here / "trained.pth")
    shown = bayesbits("posttrain", *RUN, "--steps", "1", "--checkpoint", "trained.pth")
    assert "float network" in shown.stderr
    assert not (here / "run/float.safetensors").exists()


def test_the_baseline_goes_on_where_it_was_stopped(here, monkeypatch):
    original, done = Measurement._batch_scores, []

    def stopping(self, number, settings, *, chain):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(number)
        return original(self, number, settings, chain=chain)

    command = ["sensitivity", *RUN, "--widths", "4"]
    monkeypatch.setattr(Measurement, "_batch_scores", stopping)
    bayesbits(*command, code=130)
    monkeypatch.setattr(Measurement, "_batch_scores", original)
    again = bayesbits(*command)
    assert re.findall(r"(\d) of 2 batches", again.stderr) == ["2"]
    found = Sensitivity.load(here / "run/sensitivity.json")
    assert len(found.alone) == 7  # four weights, and all activations but the network's input
    assert f"{found.front.points[0].relative_bops:.3g}%" in again.stdout


def test_what_is_missing_is_asked_for():
    assert "give a recipe" in bayesbits("posttrain", code=2).output
    assert "no widths" in bayesbits("sensitivity", *RUN, "--widths", "4;2", code=2).output
    without = bayesbits("posttrain", "cifar10-vgg7", "--set", "data.name=digits", code=1)
    assert "--checkpoint FILE" in without.output
