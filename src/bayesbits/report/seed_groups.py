"""Runs in groups: those that differ in nothing but the seed are one point, their mean over the seeds.

`sweeps.summary` says which these are, and `sweeps.estimate` averages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bayesbits.report.page_tables import Row
from bayesbits.report.run_data import Run
from bayesbits.sweeps.estimate import Estimate, cost_text, estimate_text
from bayesbits.sweeps.summary import seedless_key

_METHODS = {
    "bayesian_bits": "Bayesian Bits",
    "bayesian_bits_quantization_only": "bits only",
    "bayesian_bits_pruning_only": "channels only",
    "posttraining": "post-training",
}


@dataclass(frozen=True)
class Group:
    """Finished runs that differ in nothing but the seed."""

    name: str
    """What their line is called."""
    setting: str
    """What distinguishes them on the line: mu or the budget."""
    runs: tuple[Run, ...]
    cost: Estimate
    """The relative bit operations in percent."""
    score: Estimate
    """The metric."""

    @property
    def span(self) -> tuple[float, float]:
        """From the lowest to the highest value of the metric."""
        return min(self.score.values), max(self.score.values)

    @property
    def place(self) -> tuple[float, float]:
        """Where it lies in the chart."""
        return self.cost.mean, self.score.mean


def metric_of(runs: Iterable[Run]) -> tuple[str, str, bool] | None:
    """Name, unit and direction of the main metric of the first finished run."""
    for run in runs:
        if run.result is not None:
            score = run.result.scores[0]
            return score.name, score.unit, score.higher_is_better
    return None


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """The finished runs with the main metric, in groups, the cheapest of each line first."""
    metric = metric_of(runs)
    found: dict[Any, list[Run]] = {}
    for run in runs:
        if run.result is not None and run.result.scores[0].name == (metric or ("",))[0]:
            settings = "" if run.recipe is None else seedless_key(run.result.recipe, run.recipe)
            found.setdefault((line_of(run), setting_of(run), settings), []).append(run)
    groups = [
        Group(key[0], key[1], tuple(own), Estimate.of(map(bops_of, own)), Estimate.of(map(score_of, own)))
        for key, own in found.items()
    ]
    return sorted(groups, key=lambda group: (group.name, group.cost.mean))


def means(runs: Sequence[Run]) -> list[Row]:
    """A row for every group, where one has several seeds: setting, seeds, metric and BOPs with standard errors."""
    groups, metric = groups_of(runs), metric_of(runs)
    if metric is None or all(len(group.runs) < 2 for group in groups):
        return []
    several = len({group.name for group in groups}) > 1
    return [
        (
            f"{group.name}, {group.setting}" if several else group.setting or group.name,
            str(len(group.runs)),
            estimate_text(group.score, metric[1]),
            cost_text(group.cost),
        )
        for group in groups
    ]


def line_of(run: Run) -> str:
    """What the line of a run is called: its recipe and its method."""
    method = "" if run.result is None else _METHODS.get(run.result.method, run.result.method)
    return f"{run.name}, {method}" if method else run.name


def setting_of(run: Run) -> str:
    """The budget or mu of a run, which distinguishes it on its line."""
    budget = None if run.recipe is None else run.recipe.search.budget
    if budget is not None:
        return f"budget {budget}"
    return "" if run.result is None else f"mu {run.result.mu:.3g}"


def bops_of(run: Run) -> float:
    """The relative bit operations of a finished run in percent."""
    assert run.result is not None
    return run.result.relative_bops


def score_of(run: Run) -> float:
    """The main metric of a finished run."""
    assert run.result is not None
    return run.result.scores[0].value
