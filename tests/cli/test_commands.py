"""Every command passes its options to its implementation under the right names."""

from pathlib import Path

import pytest

from bayesbits.cli.options import RecipeOptions
from bayesbits.cli.sweep import SweepOptions
from tests.cli.invoke import bayesbits

RECIPE = [
    "r.toml",
    "--set",
    "seed=1",
    "--set",
    "search.mu=2",
    "--model",
    "m:n",
    "--data",
    "d:l",
    "--task",
    "regression",
]
RECIPE += ["--loss", "mae", "--metric", "r2"]
CHOSEN = RecipeOptions("r.toml", ["seed=1", "search.mu=2"], "m:n", "d:l", "regression", "mae", "r2")
NOT_MEASURED = {"measure": False, "figures": None}
POSTTRAIN = {"labels": "given", "learn": "gates+ranges", "num_examples": 1024, "steps": 64, "mus": None}
POSTTRAIN |= {"gates": "hard_sigmoid", "per_channel": True, "budget": None, "planner": "best", "device": None}
POSTTRAIN["latency_table"] = None


@pytest.mark.parametrize(
    ("command", "implementation", "passed", "named"),
    [
        (["demo"], "search.run_demo", [Path("runs/demo")], {}),
        (["demo", "-o", "x"], "search.run_demo", [Path("x")], {}),
        (["recipes"], "show.show_recipes", [], {}),
        (["inspect", "lenet5"], "show.show_network", ["lenet5", None, ()], {}),
        (["inspect", "m", "--input-shape", "3x9", "--set", "a=1"], "show.show_network", ["m", "3x9", ["a=1"]], {}),
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
        (["plan", "x"], "show.show_plan", [Path("x")], {}),
        (["report", "x"], "report.print_report", [[Path("x")], None], NOT_MEASURED),
        (["report", "a", "b", "-o", "y"], "report.print_report", [[Path("a"), Path("b")], Path("y")], NOT_MEASURED),
        (["report", "x", "--measure"], "report.print_report", [[Path("x")], None], {**NOT_MEASURED, "measure": True}),
        (["watch", "x", "--seconds", "5"], "watch.run_watch", [Path("x"), 5.0, False, None], {}),
        (["explain", "x", "a.weight"], "explain.run_explain", [Path("x"), "a.weight"], {}),
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
        (["export", "x"], "deploy.run_export", [Path("x")], {}),
        (["verify", "x"], "deploy.run_verify", [Path("x"), 1000, "onnxruntime"], {}),
        (["verify", "x", "--runtime", "openvino"], "deploy.run_verify", [Path("x"), 1000, "openvino"], {}),
        (["verify", "x", "--num-examples", "9"], "deploy.run_verify", [Path("x"), 9, "onnxruntime"], {}),
        # Former names of options, which are still accepted.
        (["demo", "--out", "x"], "search.run_demo", [Path("x")], {}),
        (["verify", "x", "--inputs", "9"], "deploy.run_verify", [Path("x"), 9, "onnxruntime"], {}),
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
        (["bench", "x"], "deploy.run_bench", [Path("x"), 20], {}),
        (["bench", "x", "--rounds", "3"], "deploy.run_bench", [Path("x"), 3], {}),
    ],
)  # fmt: skip
def test_options_reach_the_implementation(command, implementation, passed, named, monkeypatch):
    calls = []
    monkeypatch.setattr(f"bayesbits.cli.{implementation}", lambda *args, **kwargs: calls.append((list(args), kwargs)))
    bayesbits(*command)
    assert calls == [(passed, named)]
