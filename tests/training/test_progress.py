"""Progress: lines elsewhere than on a terminal, a bar on one, and silence when asked."""

import io
import re

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

import bayesbits as bb
from bayesbits.training import progress
from tests.training.problems import compressor, config, loaders


def search(show):
    bb.search(
        compressor(), loaders()["device"], F.cross_entropy, config(epochs=2), evaluate=lambda _: {"accuracy": 97.5},
        progress=show,
    )  # fmt: skip


def test_lines_tell_epochs_time_left_and_numbers(capsys):
    search(True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("search: not compiled (compile is false), ")
    assert lines[1].startswith("search: epoch 1.0 of 2, ")
    assert lines[1].endswith(" left  accuracy 97.5")
    assert lines[2] == "search: epoch 2.0 of 2  accuracy 97.5"


def test_on_a_terminal_there_is_a_bar(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    search(True)
    assert "search 2.0/2" in screen.getvalue()
    assert "accuracy 97.5" in screen.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_line_on_a_terminal_fits_with_what_matters_most(width):
    values = {"loss": 0.4492, "task_loss": 0.1049, "penalty": 34.44, "expected_relative_bops": 6.25}
    line = progress.bar_line("finetune 102.2/300", 0.34, "1:12:34 left", values, width).plain
    assert len(line) <= width
    for said in ("finetune 102.2/300 ━━━━━━━━", "loss 0.4492", "BOPs 6.25%"):
        assert said in line
    assert ("1:12:34 left" in line) == (width >= 80)
    assert ("penalty 34.44" in line) == (width >= 100)


def test_waiting_for_a_compiler_is_said_before_the_first_step(capsys, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    settings = config(epochs=1, compile=True)
    bb.search(compressor(), loaders()["device"], F.cross_entropy, settings, progress=True)
    assert capsys.readouterr().err.splitlines()[0] == "search: compiling, once: the first steps wait for it"


def test_80_columns_have_room_for_time_cost_and_accuracy():
    values = {"loss": 0.4492, "task_loss": 0.1049, "penalty": 34.44, "expected_relative_bops": 6.25}
    values |= {"mu_relative_bops": 0.1, "target_relative_bops": 0.5, "validation_accuracy": 97.5}
    line = progress.bar_line("search 12.2/300", 0.34, "1:12:34 left", values, 80).plain
    assert len(line) <= 80
    for said in ("━━━━━━━━", "1:12:34 left", "loss 0.4492", "BOPs 6.25%", "acc 97.5"):
        assert said in line
    assert "mu" not in line


@pytest.mark.parametrize("width", [80, 100])
def test_a_search_on_a_narrow_terminal_shows_bar_time_and_cost(width, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=width))
    search(True)
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue()).splitlines()[-1]
    assert len(last) <= width
    assert re.search(r"search 2\.0/2 ━+ +\d+:\d\d  loss [\d.]+ +BOPs [\d.]+%", last)


def test_silence(capsys):
    search(False)
    assert capsys.readouterr() == ("", "")


def test_a_resumed_run_says_where_it_goes_on(tmp_path, capsys):
    class StopError(Exception):
        pass

    def fail(output, targets):
        raise StopError

    for loss in (fail, F.cross_entropy):
        try:
            bb.search(compressor(), loaders()["device"], loss, config(epochs=1), folder=tmp_path, resume=True)
        except StopError:
            capsys.readouterr()
    assert "search: resuming after 0 steps (epoch 0, batch 0)" in capsys.readouterr().err


def test_durations():
    assert [progress.duration(seconds) for seconds in (0, 59.6, 61, 3600, 7325)] == [
        "0:00", "1:00", "1:01", "1:00:00", "2:02:05",
    ]  # fmt: skip
