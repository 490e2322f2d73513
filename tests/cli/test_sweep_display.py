"""The live table of a sweep fits terminals of 80 columns and any height; elsewhere there are lines."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bayesbits.cli.sweep_display import SweepDisplay, summary_table
from bayesbits.recipes.run_folder import prepare
from bayesbits.sweeps.entries import State, find_entries
from bayesbits.sweeps.record import rows_of
from tests.sweeps.made_runs import finish_run, made_runs


def console(width=80, height=24, terminal=True):
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=terminal, color_system=None)


def shown(display, target):
    with target.capture() as captured:
        target.print(display.render())
    return captured.get()


@pytest.fixture
def entries(here):
    """Six runs: two done, one in its search, one failed, two waiting."""
    runs = made_runs("search.mu=0.01,0.1,1.0", "seed=0,1", "search.epochs=20")
    for run in runs[:2]:
        finish_run(here / run.name, run.recipe, accuracy=97.25, relative_bops=0.5)
    found = find_entries(runs, here, {})
    found[2].state, found[2].started = State.RUNNING, 0.0
    found[2].folder.mkdir()
    prepare(found[2].folder, found[2].run.recipe)
    line = {"phase": "search", "event": "train", "epoch": 12, "step": 3, "expected_relative_bops": 4.25}
    (found[2].folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    found[3].state, found[3].reason = State.FAILED, "no luck"
    return found


@pytest.mark.parametrize("width", [80, 120])
def test_every_run_has_its_line(entries, width):
    target = console(width)
    text = shown(SweepDisplay(entries, 2, target), target)
    lines = [line.rstrip() for line in text.splitlines()]
    assert len(lines) == 1 + 6 + 1
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["run", "state", "accuracy", "BOPs", "time"]
    assert lines[1].split() == ["mu=0.01,", "seed=0", "done", "97.25%", "0.5%", "1:00"]
    assert lines[3].split()[:6] == ["mu=1.0,", "seed=0", "search", "12/20", "4.25%", lines[3].split()[5]]
    assert lines[4].split()[2] == "failed"
    assert lines[7] == "6 runs: 2 waiting, 1 running, 2 done, 1 failed"


def test_a_screen_with_few_lines_shows_what_matters(entries):
    target = console(height=9)
    text = shown(SweepDisplay(entries, 2, target), target)
    assert "search 12/20" in text
    assert "failed" in text.splitlines()[3]
    assert "3 more; 6 runs:" in text
    assert len(text.splitlines()) == 1 + 3 + 1


def test_long_labels_are_shortened_and_stay_distinct(here):
    runs = made_runs(
        'data.options.some_long_name_of_an_option="a value that goes on and on","a value that goes on too"'
    )
    target = console(80)
    lines = shown(SweepDisplay(find_entries(runs, here, {}), 1, target), target).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) == 4


def test_the_time_that_is_left_follows_from_the_runs_of_this_sweep(entries):
    display = SweepDisplay(entries, 2, console())
    assert "left" not in shown(display, display._console)
    entries[0].seconds = entries[1].seconds = 100.0
    part = (20 + 12) / (20 + 20 + 5)
    minutes = round((3 - part) * 100 / 2)
    assert f"about {minutes} s left" in shown(display, display._console)


def test_stopping_is_said(entries):
    target = console()
    display = SweepDisplay(entries, 2, target)
    display.stopping = True
    entries[0].seconds = 100.0
    text = " ".join(shown(display, target).split())
    assert "stopping: the runs write their checkpoints" in text
    assert "left" not in text
    entries[2].state = State.INTERRUPTED
    assert "stopping" not in shown(display, target)


def test_a_terminal_has_a_live_table(entries):
    target = console()
    with SweepDisplay(entries, 2, target) as display:
        display.changed(entries[2])
        display.changed(None)
    assert "search 12/20" in target.file.getvalue()


def test_elsewhere_changes_are_lines(entries, capsys, monkeypatch):
    with SweepDisplay(entries, 2, console(terminal=False)) as display:
        display.changed(entries[2])
        entries[0].seconds = 61.0
        display.changed(entries[0])
        display.changed(entries[3])
        display.changed(None)
        assert capsys.readouterr().err.splitlines() == [
            "mu=1.0, seed=0: starts",
            "mu=0.01, seed=0: done, accuracy 97.25%, 0.5% of the bit operations, 1:01",
            "mu=0.01, seed=1: failed: no luck",
        ]
        monkeypatch.setattr("bayesbits.cli.sweep_display._LINE_SECONDS", 0.0)
        display.changed(None)
        assert capsys.readouterr().err == (
            "6 runs: 2 waiting, 1 running, 2 done, 1 failed; mu=1.0, seed=0: search 12/20\n"
        )
        entries[3].state, entries[3].reason = State.WAITING, "its process was killed"
        display.changed(entries[3])
        assert "its process was killed; it is started again" in capsys.readouterr().err
        (entries[2].folder / "search.checkpoint").touch()
        display.changed(entries[2])
        assert capsys.readouterr().err == "mu=1.0, seed=0: goes on from 'search'\n"


def test_a_validation_has_its_column(here):
    (run,) = made_runs()
    finish_run(here / run.name, run.recipe)
    (here / run.name / "metrics.jsonl").write_text('{"event": "evaluate", "validation_accuracy": 91.5}\n')
    target = console(120)
    with target.capture() as captured:
        target.print(summary_table(rows_of(find_entries([run], here, {})), target))
    assert "validation" in captured.get()
    assert "91.50%" in captured.get()


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_fits(here, width):
    for run in made_runs("search.mu=0.01,0.1", "seed=0,1"):
        finish_run(here / run.name, run.recipe, accuracy=96.0 + run.recipe.seed)
    rows = rows_of(find_entries(made_runs("search.mu=0.01,0.1", "seed=0,1"), Path(here), {}))
    target = console(width)
    with target.capture() as captured:
        target.print(summary_table(rows, target))
    assert "96.50 ± 0.50%" in captured.get()
    assert max(map(len, captured.get().splitlines())) <= width
    assert "mu=0.1" in captured.get()
