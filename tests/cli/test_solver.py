"""The solver beside the learned plan: which loss it scores, which of the two is better, and a missing scipy."""

import sys

import pytest
import torch

import bayesbits as bb
from bayesbits.cli.solver import best_planner, check_solver, solver_point
from bayesbits.posttraining.front_points import read_point
from tests.posttraining.networks import attached, pairs

BUDGET = bb.Budget(relative_bops=3.0)


def batches(labeled):
    return pairs() if labeled else [x for x, _ in pairs()]


@pytest.mark.parametrize("loss", ["labels", "output", "layers", lambda output, wanted: (output - wanted).abs().mean()])
def test_there_is_a_plan_for_every_loss_of_post_training(loss):
    compressor, config = attached(), bb.PosttrainConfig(loss=loss)
    own = batches(loss == "labels")
    compressor.calibrate(batches(False), "mse")
    state = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    point = solver_point(compressor, own, config, torch.nn.functional.cross_entropy, BUDGET, lambda: 5.0)
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    assert (point.score, point.mu) == (5.0, None)
    assert BUDGET.allows(compressor.cost(point.plan))


@pytest.mark.parametrize("labeled", [True, False])
def test_the_planner_with_the_smaller_loss_is_the_better_one(labeled, capsys):
    compressor, config = attached(), bb.PosttrainConfig(loss="labels" if labeled else "output")
    compressor.calibrate(batches(False), "mse")
    wide, narrow = (read_point(compressor, bb.Plan.uniform(compressor.topology, bits, bits)) for bits in (8, 2))
    arguments = compressor, batches(labeled), config, torch.nn.functional.cross_entropy
    assert best_planner(*arguments, {"learned": wide, "solver": narrow}) == "learned"
    assert best_planner(*arguments, {"learned": narrow, "solver": wide}) == "solver"
    assert "loss on the examples: learned" in capsys.readouterr().err
    assert best_planner(*arguments, {"solver": narrow}) == "solver"
    assert compressor.attachment.quantizers["hidden.weight"].mode == "learning"


def test_without_scipy_only_the_solver_itself_is_refused(monkeypatch, capsys):
    assert (check_solver("best"), check_solver("solver"), check_solver("learned")) == (True, True, False)
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert not check_solver("best")
    assert "needs scipy" in capsys.readouterr().err
    assert not check_solver("learned")
    with pytest.raises(ImportError, match="needs scipy"):
        check_solver("solver")
