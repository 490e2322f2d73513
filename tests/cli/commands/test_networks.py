"""The commands about networks pass their options to their implementations under the right names."""

from pathlib import Path

import pytest

from tests.cli.invoke import calls_of


@pytest.mark.parametrize(
    ("command", "implementation", "passed", "named"),
    [
        (["recipes"], "show.show_recipes", [], {}),
        (["inspect", "lenet5"], "show.show_network", ["lenet5", None, (), False], {}),
        (["inspect", "m", "--input-shape", "3x9", "--set", "a"], "show.show_network", ["m", "3x9", ["a"], False], {}),
        (["inspect", "vit", "--products"], "show.show_network", ["vit", None, (), True], {}),
        (
            ["measure", "r"],
            "measure.run_measure",
            ["r", Path("latency_table.json"), ()],
            {"model": None, "input_shape": None, "threads": 1, "rounds": 30},
        ),
        (
            ["measure", "-o", "t", "--set", "a=1", "--model", "m:n", "--input-shape", "3x9", "--threads", "2"]
            + ["--rounds", "7"],
            "measure.run_measure",
            [None, Path("t"), ["a=1"]],
            {"model": "m:n", "input_shape": "3x9", "threads": 2, "rounds": 7},
        ),
    ],
)  # fmt: skip
def test_options_reach_the_implementation(command, implementation, passed, named, monkeypatch):
    assert calls_of(implementation, command, monkeypatch) == [(passed, named)]
