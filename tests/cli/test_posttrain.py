"""Post-training from the command line, on digits."""

import re

import pytest
import torch

import bayesbits as bb
from bayesbits import recipes
from bayesbits.cli import posttrain as implementation
from bayesbits.recipes.run_state import load_state
from bayesbits.zoo import models
from tests.cli.invoke import SHORT, bayesbits

RUN = ["digits-lenet5", *SHORT, "--num-examples", "40", "--device", "cpu", "--output", "run"]


def test_a_front_is_shown_and_every_point_of_it_can_be_restored(here):
    shown = bayesbits("posttrain", *RUN, "--steps", "2", "--labels", "none", "--learn", "gates").stdout
    front = bb.Front.load(here / "run/front.json")
    assert "gates, learned on 40 examples without labels" in shown
    assert "359 test examples" in shown
    for point in front.points:
        assert f"mu = {point.mu:g}" in shown
        assert f"{point.score:.2f}%" in shown
    recipe = recipes.load(here / "run/recipe.toml")
    assert (recipe.spec.prune, recipe.spec.gates) == (False, "hard_sigmoid")
    trained = recipes.trained_network(recipe, here / "run", device="cpu")
    compressor = bb.attach(trained.model, trained.loaders.example, recipe.spec)
    bb.restore(compressor, front.points[0])
    assert compressor.cost().relative_bops == front.points[0].relative_bops


@pytest.mark.check
def test_a_point_within_a_cost_becomes_the_result_that_every_command_takes(here):
    shown = bayesbits("posttrain", *RUN, "--steps", "30", "--mus", "0.001,0.01")
    assert "with --budget LIMIT, such as" in shown.stderr
    assert "test accuracy" in shown.stderr
    points = bb.Front.load(here / "run/front.json").points
    assert points[0].relative_bops > points[1].relative_bops
    assert "with --budget LIMIT makes a plan within it final" in bayesbits("plan", "run", code=1).stderr

    within = (points[0].relative_bops + points[1].relative_bops) / 2
    budget = ["--steps", "30", "--mus", "0.001,0.01", "--budget", f"{within}% bops", "--planner", "learned"]
    final = bayesbits("posttrain", *RUN, *budget)
    assert "Bits and channels" in final.stdout
    assert f"within the budget of {within}% bops: " in final.stdout.replace("\n", " ")
    *again, chosen = bb.Front.load(here / "run/front.json").points
    assert tuple(again) == points  # the same points, and one more
    assert chosen.relative_bops <= within
    finished = recipes.restore(here / "run", device="cpu")
    assert finished.plan == finished.compressor.plan() == chosen.plan
    assert finished.result.accuracy == chosen.score
    assert (finished.result.method, finished.result.mu, finished.result.epochs) == ("posttraining", chosen.mu, 0)
    assert finished.result.verdict.startswith("within the budget of")
    assert "holds all of its points already" in bayesbits("posttrain", *RUN, *budget).stderr
    assert "Bits and channels" in bayesbits("plan", "run").stdout
    bayesbits("export", "run")
    assert "the largest of 10 differs in 0 of 100" in bayesbits("verify", "run", "--num-examples", "100").stdout
    bayesbits("report", "run")
    page = (here / "run/report.html").read_text()
    assert "bits were learned on a few examples" in page
    assert "bayesbits posttrain recipe.toml --output again --budget" in re.sub("<[^>]*>", "", page)
    assert (
        "result of bayesbits posttrain"
        in bayesbits("search", "run/recipe.toml", "--output", "run", "--resume", code=1).stderr
    )


@pytest.mark.check
def test_the_learned_plan_and_that_of_the_solver_are_shown_and_the_better_one_is_final(here):
    budget = ["--steps", "30", "--mus", "0.001,0.01", "--budget", "300 kB, 3% bops"]
    shown = bayesbits("posttrain", *RUN, *budget)
    assert "learned, within 3% bops, 300 kB" in shown.stdout
    assert "solver, within 3% bops, 300 kB" in shown.stdout
    losses = re.search(r"loss on the examples: learned (\S+), solver (\S+)", shown.stderr)
    learned, solved = map(float, losses.groups())
    assert ("the learned plan" if learned <= solved else "the solver's plan") in shown.stderr
    finished = recipes.restore(here / "run", device="cpu")
    assert bb.Budget.parse("300 kB, 3% bops").allows(finished.compressor.cost())

    alone = bayesbits("posttrain", *RUN, *budget, "--planner", "solver")
    assert "learned, within" not in alone.stdout
    assert "the solver's plan is final" in alone.stderr
    finished = recipes.restore(here / "run", device="cpu")
    assert (finished.result.method, finished.result.mu) == ("posttraining", 0.0)
    assert finished.result.verdict.startswith("within the budget of")


def test_a_planner_needs_a_budget():
    assert "--planner" in bayesbits("posttrain", *RUN, "--planner", "solver", code=2).output


@pytest.mark.check
def test_points_learned_in_another_way_are_not_overwritten(here):
    torch.save(models.create("lenet5").state_dict(), here / "trained.pth")
    run = ["posttrain", *RUN, "--checkpoint", "trained.pth", "--mus", "0.001", "--steps", "1"]
    bayesbits(*run)
    before = (here / "run/front.json").read_bytes()
    for changed, difference in (
        (["--labels", "none"], "loss was 'labels'"),
        (["--learn", "gates"], "learn was 'gates+ranges'"),
        (["--steps", "2"], "steps was 1"),
        (["--num-examples", "30"], "examples was 40"),
        (["--mus", "0.01"], "mus was [0.001]"),
        (["--gates", "sigmoid"], "spec.gates was 'hard_sigmoid'"),
    ):
        refused = bayesbits(*run, *changed, code=1).stderr
        assert difference in refused
        assert "--output" in refused
    torch.save(models.create("lenet5").state_dict(), here / "trained.pth")
    assert "weights was" in bayesbits(*run, code=1).stderr
    (here / "run/posttrain.json").unlink()
    assert "no posttrain.json says how" in bayesbits(*run, code=1).stderr
    assert (here / "run/front.json").read_bytes() == before


def test_points_that_are_done_outlast_an_interruption(here, monkeypatch):
    scored = []

    def stopping(*arguments):
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(arguments)
        return 50.0

    monkeypatch.setattr(implementation, "score_on_test", stopping)
    run = ["posttrain", *RUN, "--steps", "1", "--mus", "0.001,0.002,0.003"]
    stopped = bayesbits(*run, code=130).stderr
    assert "2 of 3 points are in run/front.json" in stopped
    assert len(bb.Front.load(here / "run/front.json").points) == 2
    assert load_state(here / "run").status == "interrupted"
    bayesbits("report", "run")
    page = (here / "run/report.html").read_text()
    assert "was interrupted" in page
    assert "in post-training, 2 of 3 points:" in page
    monkeypatch.undo()
    monkeypatch.chdir(here)
    bayesbits(*run)
    assert len(bb.Front.load(here / "run/front.json").points) == 3
    assert load_state(here / "run") is None


def test_what_is_missing_is_asked_for():
    assert "give a recipe" in bayesbits("posttrain", code=2).output
    for wrong in ("0.1,a", "0.1,0.01", ""):
        assert "no weights of a penalty" in bayesbits("posttrain", *RUN, "--mus", wrong, code=2).output
    without = bayesbits("posttrain", "cifar10-vgg7", "--set", "data.name=digits", code=1)
    assert "--checkpoint FILE" in without.output


@pytest.mark.check
def test_activations_and_groups_are_settings_of_the_spec(here):
    torch.manual_seed(0)
    torch.save(models.create("lenet5").state_dict(), here / "trained.pth")
    run = ["posttrain", *RUN, "--checkpoint", "trained.pth", "--steps", "1", "--mus", "0.001"]
    run += ["--set", "spec.activations=float", "--set", "spec.group_size=32"]
    bayesbits(*run)
    for setting, said in (("spec.group_size=64", "spec.group_size was 32"), ("spec.bits=[4,8]", "spec.bits was")):
        assert said in bayesbits(*run, "--set", setting, code=1).stderr.replace("\n", " ")
    bayesbits(*run, "--budget", "100", "--planner", "learned")
    finished = recipes.restore(here / "run", device="cpu").compressor
    assert (finished.spec.activations, finished.spec.group_size, finished.spec.prune) == ("float", 32, False)
    assert {bits for name, bits in finished.plan().bits.items() if name.endswith(".input")} == {32}
