"""A run in the terminal: its stage, its values with their course, its bits, and what fits."""

import io

import pytest
from rich.console import Console

from bayesbits.cli import watch
from bayesbits.recipes.run_state import recorded
from bayesbits.report import read_run
from tests.cli.invoke import bayesbits
from tests.report.runs import write_run


def shown(folder, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(watch.view(read_run(folder), console))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


@pytest.fixture
def running(here):
    """A search after 10 of 20 epochs."""
    write_run(here / "run")
    for name in ("result.json", "plan.json"):
        (here / "run" / name).unlink()
    lines = (here / "run/metrics.jsonl").read_text().splitlines(keepends=True)
    (here / "run/metrics.jsonl").write_text("".join(line for line in lines if "finetune" not in line))
    return here / "run"


def test_a_running_search_has_its_stage_values_and_bits(running):
    text = shown(running)
    assert "digits-lenet5: search, epoch" in text
    assert "of 20" in text
    assert "expected BOPs, %" in text
    assert "stem.weight  2" in text
    assert "head.input  16" in text  # the numbers stand below one another


def test_a_finished_run_ends_the_command(here):
    write_run(here / "run")
    text = bayesbits("watch", "run").stdout
    assert "digits-lenet5: finished" in text
    assert "test accuracy 97.50% (float 98.25%)" in text


def test_a_damaged_run_is_said(here):
    write_run(here / "run")
    (here / "run/plan.json").write_text("{")
    assert "plan.jsonisdamaged" in "".join(shown(here / "run").split())  # whatever the length of the folder's name
    (here / "run/plan.json").unlink()
    assert "plan.jsonisnotthere" in "".join(shown(here / "run").split())


def test_a_run_that_has_written_nothing_is_said(running):
    (running / "metrics.jsonl").unlink()
    assert "nothing is written yet" in shown(running)


def test_a_run_that_failed_ends_the_view_with_its_error(running, monkeypatch):
    with pytest.raises(ValueError, match="too few"), recorded(running, "bayesbits search run/recipe.toml --resume"):
        raise ValueError("too few labels")
    monkeypatch.setattr(watch.time, "sleep", pytest.fail)
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    watch._watch(running, 1.0, console, None)
    text = " ".join(console.file.getvalue().split())
    assert "digits-lenet5: failed in search, epoch" in text
    assert "ValueError: too few labels" in text
    assert "Go on with: bayesbits search" in text


def test_the_view_is_drawn_until_the_run_ends(running, monkeypatch):
    times = []

    def end_after_two(seconds):
        times.append(seconds)
        if len(times) == 2:
            (running / "result.json").write_text("{}")

    monkeypatch.setattr(watch.time, "sleep", end_after_two)
    console = Console(file=io.StringIO(), width=80, height=30, force_terminal=True)
    monkeypatch.setattr(watch, "output_console", lambda: console)
    watch.run_watch(running, 1.5, once=False)
    assert times == [1.5, 1.5]
    assert "finished" in console.file.getvalue()


def test_a_course_is_one_line():
    assert watch.sparkline([0.0, 1.0, 2.0, 3.0]) == "▁▃▆█"
    assert watch.sparkline([5.0, 5.0]) == "▅▅"
    assert watch.sparkline([0.0, 7.0], plain=True) == " #"
    assert len(watch.sparkline([float(one) for one in range(1000)])) == 32
