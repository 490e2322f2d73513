"""A trained network with calibrated ranges: its weights, its data and its folder, and what is refused."""

import pytest
import torch

import bayesbits as bb
from bayesbits.cli.calibrated_network import parse_budget
from bayesbits.zoo import models
from tests.cli.invoke import SHORT, bayesbits, interrupting_at

RUN = ["digits-lenet5", *SHORT, "--num-examples", "40", "--device", "cpu", "--output", "run"]


@pytest.mark.parametrize("command", [["posttrain"], ["posttrain", "--planner", "solver"], ["sensitivity"]])
def test_a_budget_that_cannot_be_reached_is_refused_before_anything_is_trained(here, command):
    failed = bayesbits(*command, *RUN, "--budget", "0.01", code=1)
    assert "the budget of 0.01% bops cannot be reached" in failed.stderr.replace("\n", " ")
    assert "float network" not in failed.stderr
    assert not (here / "run/front.json").exists()
    assert not (here / "run/result.json").exists()


def test_a_number_alone_is_a_percentage_and_other_budgets_have_a_unit():
    assert parse_budget("2.5") == bb.Budget(relative_bops=2.5)
    assert parse_budget("500 kB") == bb.Budget(weight_bytes=500_000)
    for wrong in ("-1", "0", "2%", "3 apples"):
        for command in ("posttrain", "sensitivity"):
            assert "--budget" in bayesbits(command, *RUN, f"--budget={wrong}", code=2).output


def test_a_final_point_never_takes_the_place_of_a_search(here):
    options = ["digits-lenet5", *SHORT, "--set", "spec.prune=false", "--set", 'spec.gates="hard_sigmoid"']
    bayesbits("search", *options, "--device", "cpu", "--output", "run")
    assert "holds a search" in bayesbits("posttrain", *options, "--output", "run", "--budget", "5", code=1).stderr


def test_float_training_that_was_interrupted_goes_on_by_itself(here, monkeypatch):
    interrupting_at(2, monkeypatch)
    run = ["posttrain", *RUN, "--steps", "1", "--mus", "0.001"]
    stopped = bayesbits(*run, code=130).stderr
    assert "start the same command again to continue" in stopped
    assert "resume" not in stopped
    bayesbits(*run)


FACTORIES = """
import torch
from bayesbits.zoo import models

torch.manual_seed(0)
images, labels = torch.rand(64, 1, 28, 28), torch.randint(10, (64,))


def network():
    return models.create("lenet5")


def unlabeled():
    return images.split(16), [(images, labels)]


def untested():
    return images.split(16), images.split(16)
"""


def test_without_labels_a_loader_of_inputs_is_enough(here):
    (here / "factories_of_posttrain.py").write_text(FACTORIES)
    torch.save(models.create("lenet5").state_dict(), here / "trained.pth")
    options = ["--model", "factories_of_posttrain:network", "--checkpoint", "trained.pth", "--device", "cpu"]
    options += ["--steps", "1", "--mus", "0.001", "--set", 'spec.preset="onnxruntime"', "--output", "run"]
    unlabeled = ["--data", "factories_of_posttrain:unlabeled"]
    asked = bayesbits("posttrain", *options, *unlabeled, code=1).stderr
    assert "posttrain --labels none" in asked
    untested = bayesbits("posttrain", *options, "--data", "factories_of_posttrain:untested", "--labels", "none", code=1)
    assert "a test needs labels" in untested.stderr.replace("\n", " ")
    assert not (here / "run").exists()
    shown = bayesbits("posttrain", *options, *unlabeled, "--labels", "none", "--budget", "100")
    assert "64 examples without labels" in shown.stdout
    bayesbits("verify", "run", "--num-examples", "16")


def test_weights_from_a_file_take_the_place_of_training(here):
    torch.manual_seed(0)
    torch.save(models.create("lenet5").state_dict(), here / "trained.pth")
    shown = bayesbits("posttrain", *RUN, "--steps", "1", "--checkpoint", "trained.pth")
    assert "float network" in shown.stderr
    assert not (here / "run/float.safetensors").exists()


def test_a_wrong_checkpoint_is_one_message_and_the_right_one_can_follow(here):
    torch.manual_seed(0)
    torch.save(models.create("lenet5").state_dict(), here / "trained.pth")
    quick = ["posttrain", *RUN, "--steps", "1", "--labels", "none"]
    (here / "notes.txt").write_text("hello there")
    torch.save(models.create("lenet5"), here / "whole.pth")
    for name, words in (
        ("notes.txt", "notes.txt is not a checkpoint"),
        ("whole.pth", "save model.state_dict() instead"),
        ("none.pth", "none.pth is not there"),
        (".", "is a folder"),
    ):
        shown = bayesbits(*quick, "--checkpoint", name, code=1).stderr
        assert words in shown
        assert "unexpected error" not in shown
        assert not (here / "run").exists()
    bayesbits(*quick, "--checkpoint", "trained.pth")


@pytest.mark.parametrize("output", ["a-file", "a-file/run"])
def test_a_file_in_the_place_of_the_folder_is_named(here, output):
    (here / "a-file").write_text("")
    for command in (["posttrain", *RUN], ["search", "digits-lenet5"]):
        shown = bayesbits(*command, "--output", output, code=1).stderr
        assert "a-file is a file; choose another by --output" in shown
