"""The commands that train pass their options to their implementations under the right names."""

from pathlib import Path

import pytest

from bayesbits.cli.options import RecipeOptions
from bayesbits.cli.sweep import SweepOptions
from tests.cli.invoke import CHOSEN, RECIPE, calls_of


@pytest.mark.parametrize(
    ("command", "implementation", "passed", "named"),
    [
        (["demo"], "search.run_demo", [Path("runs/demo")], {}),
        (["demo", "-o", "x"], "search.run_demo", [Path("x")], {}),
        (
            ["search", "r"],
            "search.run_search",
            [RecipeOptions("r"), None],
            {"resume": False, "device": None, "budget": None, "latency_table": None},
        ),
        (
            ["search", *RECIPE, "-o", "x", "--resume", "--device", "cpu", "--budget", "2 ms", "--latency-table", "t"],
            "search.run_search",
            [CHOSEN, Path("x")],
            {"resume": True, "device": "cpu", "budget": "2 ms", "latency_table": Path("t")},
        ),
        (["sweep", "r"], "sweep.run_sweep", [SweepOptions(("r",), Path("runs/sweep"))], {}),
        (
            ["sweep", "r", "s", *RECIPE[1:], "--methods", "a,b", "--seeds", "0,1", "--budget", "1% bops"]
            + ["--budget", "2 kB", "--latency-table", "t", "--out", "x", "-j", "3", "--ray", "auto", "--device", "cpu"],
            "sweep.run_sweep",
            [
                SweepOptions(
                    ("r", "s"), Path("x"), ("seed=1", "search.mu=2"), "a,b", "0,1", ("1% bops", "2 kB"), Path("t"),
                    "m:n", "d:l", "regression", "mae", "r2", 3, "auto", "cpu",
                )
            ],
            {},
        ),
        (["demo", "--out", "x"], "search.run_demo", [Path("x")], {}),
    ],
)  # fmt: skip
def test_options_reach_the_implementation(command, implementation, passed, named, monkeypatch):
    assert calls_of(implementation, command, monkeypatch) == [(passed, named)]
