"""The targets of the searches, from experiments/targets.toml, beside what was reached."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isinf
from pathlib import Path
from typing import Any

from bayesbits.recipes import names
from bayesbits.report.paper_points import PAPER, POINTS
from docs.searches import EXPERIMENTS, ROOT, Search, accuracy_text, cost_text, searches, seeds_text

SEEDS = 3
"""A target is reached by the mean of so many seeds."""
TARGETS = ROOT / "experiments" / "targets.toml"
_ROUNDING = (5e-3, 5e-4)
"""Accuracies are shown with two digits, costs with three."""


@dataclass(frozen=True)
class Target:
    """What a search is meant to reach."""

    network: str
    search: str
    """The name of the search that is meant."""
    relative_bops: float
    """The most relative bit operations, in percent."""
    accuracy: float | None = None
    """In percent; None: below the float network."""
    below_float: float = 0.0
    """How many points below the float network of the same runs, where no accuracy is given."""
    errors: tuple[float, float] = (0.0, 0.0)
    """The standard errors of accuracy and cost, where the target is a published point."""

    @property
    def words(self) -> str:
        """The accuracy that is wanted."""
        if self.accuracy is None:
            return f"float - {self.below_float:g} points"
        error = f" ± {self.errors[0]:.2f}" if self.errors[0] else ""
        return f"{self.accuracy:.2f}{error}%"

    def missing(self, search: Search) -> tuple[float, float]:
        """By how much the accuracy is too low and the cost too high; zero where they are not."""
        wanted = self.accuracy
        if wanted is None:
            wanted = float("inf") if search.float_accuracy is None else search.float_accuracy.mean - self.below_float
        own = (search.accuracy.error or 0.0, search.cost.error or 0.0) if any(self.errors) else (0.0, 0.0)
        low = wanted - search.accuracy.mean - self.errors[0] - own[0]
        high = search.cost.mean - self.relative_bops - self.errors[1] - own[1]
        return (low if low > _ROUNDING[0] else 0.0), (high if high > _ROUNDING[1] else 0.0)

    def verdict(self, search: Search | None) -> str:
        """What was reached, in words."""
        if search is None:
            return "not run"
        low, high = self.missing(search)
        behind = [] if low == 0 else ["no float network to compare with" if isinf(low) else f"{low:.2f} points behind"]
        behind += [] if high == 0 else [f"{high:.3f}% of the bit operations too many"]
        close = "within the errors or better" if any(self.errors) else "reached"
        found = ", ".join(behind) or close
        return found if search.seeds >= SEEDS else f"{found}, with {seeds_text(search.seeds)} of {SEEDS}"


@cache
def targets() -> tuple[Target, ...]:
    """All targets; those of the paper's settings are its published points."""
    return tuple(_target(entry) for entry in tomllib.loads(TARGETS.read_text(encoding="utf-8"))["targets"])


def _target(entry: Mapping[str, Any]) -> Target:
    if "paper" not in entry:
        return Target(**entry)
    recipe = next(name for name in POINTS if entry["search"].startswith(name))
    point = next(one for one in POINTS[recipe][PAPER] if one.method == entry["paper"])
    return Target(entry["network"], entry["search"], point.relative_bops, point.accuracy, errors=point.errors or (0, 0))


def target_rows(found: Sequence[Search] | None = None) -> list[dict[str, Any]]:
    """A row for each target: the search that is meant, and where it has not run, the best so far within its cost."""
    found = searches() if found is None else found
    by_name = {search.name: search for search in found}
    rows = []
    for target in targets():
        search = by_name.get(target.search)
        wanted = f"{target.words} at {target.relative_bops:.2f}%"
        rows.append(_row(f"{target.network} (`{target.search}`)", wanted, search, target.verdict(search)))
        if search is None and (other := nearest(target, found)) is not None:
            shorter, tried = other
            chosen = f"; the best of {tried} settings on the test images" if tried > 1 else ""
            about = f"so far: {shorter.epochs} epochs{', images held back' * shorter.choosing} (`{shorter.name}`)"
            rows.append(_row(about, "the same", shorter, target.verdict(shorter) + chosen))
    return rows


def nearest(target: Target, found: Sequence[Search]) -> tuple[Search, int] | None:
    """The best search of the same recipe within the cost, and among how many it was chosen by its test accuracy.

    Where all of them have an accuracy on images that were held back, that chooses, and the number is 1.
    """
    recipe = max((name for name in names() if target.search.startswith(f"{name}-")), key=len)
    own = [one for one in found if one.recipe == recipe and target.missing(one)[1] == 0]
    if any(target.errors) or not own:
        return None
    if all(one.held_back is not None for one in own):
        return max(own, key=lambda one: one.held_back or 0.0), 1
    return max(own, key=lambda one: one.accuracy.mean), len(own)


def _row(network: str, wanted: str, search: Search | None, verdict: str) -> dict[str, Any]:
    return {
        "network": network,
        "target": wanted,
        "float": "" if search is None or search.float_accuracy is None else accuracy_text(search.float_accuracy),
        "accuracy": "" if search is None else accuracy_text(search.accuracy),
        "bit operations": "" if search is None else cost_text(search.cost),
        "reached": verdict,
    }


def verdicts(folder: Path = EXPERIMENTS) -> dict[str, str]:
    """What was reached of the targets, by the names of the searches that have run."""
    by_name = {search.name: search for search in searches(folder)}
    return {
        one.search: f"{one.verdict(by_name[one.search])}; wanted are {one.words} at {one.relative_bops:.2f}%"
        for one in targets()
        if one.search in by_name
    }
