"""The commands that choose bits without training pass their options to their implementations under the right names."""

from pathlib import Path

import pytest

from bayesbits.cli.options import RecipeOptions
from tests.cli.invoke import CHOSEN, RECIPE, calls_of

POSTTRAIN = {"labels": "given", "learn": "gates+ranges", "num_examples": 1024, "steps": 64, "mus": None}
POSTTRAIN |= {"gates": "hard_sigmoid", "per_channel": True, "budget": None, "planner": "best", "device": None}
POSTTRAIN["latency_table"] = None


@pytest.mark.parametrize(
    ("command", "implementation", "passed", "named"),
    [
        (["posttrain", "r"], "posttrain.run_posttrain", [RecipeOptions("r"), None, None], POSTTRAIN),
        (
            ["posttrain", *RECIPE, "--checkpoint", "w", "-o", "x", "--labels", "none", "--learn", "gates"]
            + ["--num-examples", "7", "--steps", "3", "--mus", "1,2", "--gates", "sigmoid", "--budget", "2.5"]
            + ["--per-tensor", "--planner", "solver", "--device", "cpu", "--latency-table", "t"],
            "posttrain.run_posttrain",
            [CHOSEN, Path("w"), Path("x")],
            {
                "labels": "none", "learn": "gates", "num_examples": 7, "steps": 3, "mus": "1,2", "gates": "sigmoid",
                "per_channel": False, "budget": "2.5", "planner": "solver", "device": "cpu", "latency_table": Path("t"),
            },
        ),
        (
            ["sensitivity", "r"],
            "sensitivity.run_sensitivity",
            [RecipeOptions("r"), None, None],
            {
                "labels": "given", "bits": (8, 4, 2), "num_examples": 1024, "per_channel": True, "budget": None,
                "device": None,
            },
        ),
        (
            ["sensitivity", *RECIPE, "--checkpoint", "w", "-o", "x", "--bits", "4, 2", "--num-examples", "5"]
            + ["--per-tensor", "--budget", "2 kB"],
            "sensitivity.run_sensitivity",
            [CHOSEN, Path("w"), Path("x")],
            {
                "labels": "given", "bits": (4, 2), "num_examples": 5, "per_channel": False, "budget": "2 kB",
                "device": None,
            },
        ),
        (
            ["posttrain", "r", "--within", "2.5", "--examples=7"],
            "posttrain.run_posttrain",
            [RecipeOptions("r"), None, None],
            {**POSTTRAIN, "num_examples": 7, "budget": "2.5"},
        ),
        (
            ["sensitivity", "r", "--widths", "4"],
            "sensitivity.run_sensitivity",
            [RecipeOptions("r"), None, None],
            {
                "labels": "given", "bits": (4,), "num_examples": 1024, "per_channel": True, "budget": None,
                "device": None,
            },
        ),
    ],
)  # fmt: skip
def test_options_reach_the_implementation(command, implementation, passed, named, monkeypatch):
    assert calls_of(implementation, command, monkeypatch) == [(passed, named)]
