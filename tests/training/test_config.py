"""What a user may choose about training is checked when it is said, before any work."""

import dataclasses
import math
import re
from typing import Any

import pytest

import bayesbits as bb
from bayesbits import Budget, FinetuneConfig, OptimizerConfig, SearchConfig
from bayesbits.functional.gates import INITIAL_LOGIT as OPEN_LOGIT
from bayesbits.training.budget_control import INITIAL_LOGIT
from bayesbits.training.config import gate_optimizer, range_optimizer
from bayesbits.training.optimizers import scheduled_lr

BOTH: list[tuple[dict[str, Any], str]] = [
    ({"epochs": -1}, "epochs is -1; it is an integer of at least 0"),
    ({"epochs": 1.5}, "epochs is 1.5"),
    ({"epochs": True}, "epochs is True"),
    ({"epoch_steps": 0}, "epoch_steps is 0; it is an integer of at least 1"),
    ({"distillation": math.nan}, "distillation is nan; it is a number from 0 to 1"),
    ({"distillation": 1.5}, "distillation is 1.5"),
    ({"temperature": 0}, "temperature is 0; it is a positive number"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"precision": "bf16"}, "precision is 'bf16'; it is one of float32, bfloat16"),
    ({"precision": None}, "precision is None"),
    ({"compile": 1}, "compile is 1; it is True or False"),
    ({"seed": -1}, "seed is -1"),
    ({"checkpoint_seconds": "often"}, "checkpoint_seconds is 'often'; it is a number"),
    ({"log_steps": 0}, "log_steps is 0"),
    ({"frozen_statistics": 2}, "frozen_statistics is 2; it is a number from 0 to 1"),
    ({"weights": {"rat": 1}}, "weights is {'rat': 1}; it is an OptimizerConfig or a dict with keys of optimizer, lr"),
    ({"weights": {"lr": math.nan}}, "weights: OptimizerConfig.lr is nan"),
    ({"ranges": {"optimizer": "adamw"}}, "ranges: OptimizerConfig.optimizer is 'adamw'; .* did you mean 'adam'?"),
    ({"ranges": 0.1}, "ranges is 0.1"),
]
SEARCH: list[tuple[dict[str, Any], str]] = [
    ({"calibration": "nonsense"}, "calibration is 'nonsense'; it is one of minmax, moving_average, percentile, mse$"),
    ({"calibration": "min_max"}, "calibration is 'min_max'; .* did you mean 'minmax'?"),
    ({"calibration": ["mse"]}, r"calibration is \['mse'\]; it is one of"),
    ({"calibration_batches": 0}, "calibration_batches is 0"),
    ({"calibration_bits": 0}, "calibration_bits is 0; it is an integer of at least 1"),
    ({"calibration_bits": 2.0}, "calibration_bits is 2.0"),
    ({"mu": math.nan}, "mu is nan; it is a number of at least 0"),
    ({"mu": -1}, "mu is -1"),
    ({"gates": {"milestones": 0.5}}, "gates: OptimizerConfig.milestones is 0.5; it is a tuple"),
    (
        {"gates": {"schedule": "steps", "milestones": (math.nan,)}},
        "gates: OptimizerConfig.milestones is .*; they lie between 0 and 1",
    ),
]


@pytest.mark.parametrize(("options", "message"), [*BOTH, *SEARCH])
def test_wrong_choices_for_a_search_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"SearchConfig.{message}"):
        bb.SearchConfig(**options)


@pytest.mark.parametrize(("options", "message"), BOTH)
def test_wrong_choices_for_fine_tuning_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"FinetuneConfig.{message}"):
        bb.FinetuneConfig(**options)


def test_every_way_of_calibrating_is_allowed() -> None:
    for method in ("minmax", "moving_average", "percentile", "mse"):
        assert bb.SearchConfig(calibration=method).calibration == method


@pytest.mark.parametrize("config", [bb.OptimizerConfig, bb.SearchConfig, bb.FinetuneConfig])
def test_help_explains_every_field(config: Any) -> None:
    arguments = config.__doc__.partition("Args:")[2].partition("Raises:")[0]
    explained = [line.split(":")[0].strip() for line in arguments.splitlines() if re.match(r" {8}\w+: \S", line)]
    assert sorted(explained) == sorted(field.name for field in dataclasses.fields(config))


def test_mu_is_given_or_follows_from_the_budget() -> None:
    assert SearchConfig().mu == 0.01
    assert SearchConfig(mu=0.0).mu == 0.0
    config = SearchConfig(budget="0.5% bops")
    assert config.mu is None
    assert config.budget == Budget(relative_bops=0.5)
    assert SearchConfig(budget={"weight_bytes": 5}).budget == Budget(weight_bytes=5)
    with pytest.raises(ValueError, match=r"mu is 0.01 and SearchConfig.budget is 0.5% bops: .* give one of them"):
        SearchConfig(mu=0.01, budget="0.5% bops")
    with pytest.raises(ValueError, match=r"SearchConfig.budget: the budget '5' does not say of what"):
        SearchConfig(budget="5")
    with pytest.raises(ValueError, match=r"SearchConfig.budget is 5; it has a unit"):
        SearchConfig(budget=5)


@pytest.mark.parametrize("steps", [60, 300, 3000, 300_000])
@pytest.mark.parametrize(("options", "start"), [({}, OPEN_LOGIT), ({"budget": "1% bops"}, INITIAL_LOGIT)])
def test_a_gate_can_close_in_the_first_third_of_any_search(options: dict[str, Any], start: float, steps: int) -> None:
    optimizer = gate_optimizer(SearchConfig(**options), steps)
    assert (start + 0.9) / optimizer.lr <= steps / 3
    assert optimizer.lr >= OptimizerConfig().lr
    assert optimizer.lr <= max(1e-3, 30 / steps)
    assert dataclasses.replace(optimizer, lr=1e-3) == OptimizerConfig()


def test_gates_learn_as_they_are_told_or_as_in_the_paper() -> None:
    for options in ({}, {"budget": "1% bops"}):
        assert gate_optimizer(SearchConfig(gates={}, **options), 300) == OptimizerConfig()
        assert gate_optimizer(SearchConfig(gates={"lr": 0.03}, **options), 300).lr == 0.03


@pytest.mark.parametrize("steps", [60, 300, 3000, 300_000])
def test_a_range_can_change_by_a_factor_of_two_in_any_search(steps: int) -> None:
    for options in ({}, {"budget": "1% bops"}):
        optimizer = range_optimizer(SearchConfig(**options), steps)
        reach = sum(scheduled_lr(optimizer, step / steps) for step in range(steps))
        assert math.exp(reach) > 2
        assert 1e-3 <= optimizer.lr <= max(1e-3, 1.2 / steps)
        assert dataclasses.replace(optimizer, lr=1e-3) == OptimizerConfig()
    assert range_optimizer(SearchConfig(), 1).lr == 0.1
    assert range_optimizer(SearchConfig(), 1000).lr == 1e-3


def test_ranges_learn_as_they_are_told_or_as_in_the_paper() -> None:
    assert range_optimizer(SearchConfig(ranges={}), 300) == OptimizerConfig()
    assert range_optimizer(SearchConfig(ranges={"lr": 0.03}), 300).lr == 0.03
    assert range_optimizer(FinetuneConfig(), 300) == FinetuneConfig().ranges
    with pytest.raises(ValueError, match=r"FinetuneConfig\.ranges is None; it is an OptimizerConfig or a dict"):
        FinetuneConfig(ranges=None)
    with pytest.raises(ValueError, match=r"SearchConfig\.weights is None; it is an OptimizerConfig or a dict"):
        SearchConfig(weights=None)
