"""Runs with different outcomes, seeds and settings, which a page compares."""

from dataclasses import replace
from pathlib import Path

import bayesbits as bb


def made(run, folder, *, score, bops, seed=0, mu=0.01, name="digits-lenet5"):
    """A run with another outcome."""
    found = replace(run.result.scores[0], value=score)
    result = replace(run.result, metrics=(found,), relative_bops=bops, seed=seed, mu=mu)
    recipe = replace(run.recipe, name=name, seed=seed, search=bb.SearchConfig(mu=mu))
    return replace(run, folder=Path(folder), result=result, recipe=recipe)


def compared_runs(run):
    """Two seeds of one setting, another setting, and another recipe."""
    return [
        made(run, "a/s0", score=90.0, bops=4.0),
        made(run, "a/s1", score=92.0, bops=6.0, seed=1),
        made(run, "b/s0", score=80.0, bops=2.0, mu=0.1),
        made(run, "c/s0", score=85.0, bops=7.0, name="mnist-lenet5"),
    ]
