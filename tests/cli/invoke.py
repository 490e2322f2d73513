"""Calls of the command line within the test's process, short runs, and interruptions."""

import signal

import torch.nn.functional as F
from typer.testing import CliRunner

from bayesbits.cli.main import app
from bayesbits.cli.options import RecipeOptions
from tests.recipes.made_data import SHORT_DIGITS

SHORT = [part for override in SHORT_DIGITS for part in ("--set", override)]

# What determines a recipe, as it is typed and as it is passed on.
RECIPE = ["r.toml", "--set", "seed=1", "--set", "search.mu=2", "--model", "m:n", "--data", "d:l"]
RECIPE += ["--task", "regression", "--loss", "mae", "--metric", "r2"]
CHOSEN = RecipeOptions("r.toml", ["seed=1", "search.mu=2"], "m:n", "d:l", "regression", "mae", "r2")


def bayesbits(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def calls_of(implementation, command, monkeypatch):
    """What a command passes to its implementation, a function in `bayesbits.cli`, which is not run."""
    calls = []
    monkeypatch.setattr(f"bayesbits.cli.{implementation}", lambda *args, **kwargs: calls.append((list(args), kwargs)))
    bayesbits(*command)
    return calls


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
