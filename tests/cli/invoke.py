"""Calls of the command line within the test's process, short runs, and interruptions."""

import signal

import torch.nn.functional as F
from typer.testing import CliRunner

from bayesbits.cli.main import app
from tests.recipes.made_data import SHORT_DIGITS

SHORT = [part for override in SHORT_DIGITS for part in ("--set", override)]


def bayesbits(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def interrupting_at(call, monkeypatch):
    """Ctrl-C at this computation of the loss; the first one only tries a batch before training."""
    calls, cross_entropy = 0, F.cross_entropy

    def interrupted(*arguments):
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(*arguments)

    monkeypatch.setattr(F, "cross_entropy", interrupted)
