"""The commands that show a run pass their options to their implementations under the right names."""

from pathlib import Path

import pytest

from tests.cli.invoke import calls_of

NOT_MEASURED = {"measure": False, "figures": None}


@pytest.mark.parametrize(
    ("command", "implementation", "passed", "named"),
    [
        (["plan", "x"], "show.show_plan", [Path("x")], {}),
        (["report", "x"], "report.print_report", [[Path("x")], None], NOT_MEASURED),
        (["report", "a", "b", "-o", "y"], "report.print_report", [[Path("a"), Path("b")], Path("y")], NOT_MEASURED),
        (["report", "x", "--measure"], "report.print_report", [[Path("x")], None], {**NOT_MEASURED, "measure": True}),
        (["watch", "x", "--seconds", "5"], "watch.run_watch", [Path("x"), 5.0, False, None], {}),
        (["explain", "x", "a.weight"], "explain.run_explain", [Path("x"), "a.weight"], {}),
    ],
)  # fmt: skip
def test_options_reach_the_implementation(command, implementation, passed, named, monkeypatch):
    assert calls_of(implementation, command, monkeypatch) == [(passed, named)]
