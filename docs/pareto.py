"""Accuracy over cost: our searches, the paper's points, later work, and the other methods that were trained here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesbits.methods import METHODS
from bayesbits.recipes import load
from bayesbits.report.paper_points import FLOAT, OTHERS, PAPER, POINTS
from bayesbits.sweeps.estimate import Estimate
from docs.drawing import Plot, Point, Style
from docs.searches import EXPERIMENTS, Search, searches

OURS = Style("ours", "#c1272d")
SHORTER = Style("ours, fewer epochs or images held back", "#c1272d", filled=False)
REPEATED = Style("ours, the paper's settings", "#1f5fa8")
SHORTER_REPEATED = Style("the same, fewer epochs or images held back", "#1f5fa8", filled=False)
PUBLISHED = Style("the paper", "#17202a", "diamond")
OTHER = Style("other published work", "#6b7785", "square", filled=False)
PLAIN = Style("other methods trained here", "#0e7f76", "triangle", filled=False)
TRICKS = Style("these from a float network, with distillation", "#0e7f76", "triangle")
PLAIN_OURS = Style("Bayesian Bits in the same runs", "#c1272d", "triangle", filled=False)
TRICKS_OURS = Style("from a float network, with distillation", "#c1272d", "triangle")
PAIR = Style("", "#9fb8b5")
ORDER = (OURS, SHORTER, REPEATED, SHORTER_REPEATED, PUBLISHED, OTHER, PLAIN, TRICKS, PLAIN_OURS, TRICKS_OURS)
TICKS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12)
MOST = 10.0
"""Costs above this, as those of float, are no compression; they are left out."""
OUR_TITLE = METHODS["bayesian_bits"].title
MethodKey = tuple[str, str, int]
"""The name, the setting and the epochs of a method that was trained here."""


@dataclass(frozen=True)
class Experiment:
    """A network on a data set."""

    recipe: str
    """The recipe with the paper's settings."""
    title: str
    span: float
    """How many points of accuracy the axis has below the best."""


EXPERIMENTS_SHOWN = (
    Experiment("mnist-lenet5", "LeNet-5 on MNIST", 0.75),
    Experiment("cifar10-vgg7", "VGG-7 on CIFAR-10", 3.4),
)


def pareto(experiment: Experiment, folder: Path = EXPERIMENTS) -> tuple[Plot, list[Point]]:
    """The plot, and the points that lie below its axis."""
    own = [one for one in searches(folder) if one.base == experiment.recipe and (one.plain or one.choosing)]
    methods, pairs = _methods(folder / f"methods-{experiment.recipe}.json")
    points = [point for point in (*_ours(own), *_published(experiment.recipe), *methods) if point.x <= MOST]
    float_accuracy = FLOAT[experiment.recipe]
    best = max(float_accuracy, *(point.y + (point.y_error or 0.0) for point in points))
    step = experiment.span / 20
    low = max(best - experiment.span, min(point.y - (point.y_error or 0.0) for point in points) - step)
    shown = [point for point in points if point.y >= low]
    costs = [point.x for point in shown]
    plot = Plot(
        f"{experiment.title}: accuracy over bit operations",
        "bit operations, % of those at 32 x 32 bits (logarithmic; left is cheaper)", "accuracy on the test images, %",
        (min(costs) / 1.12, max(costs) * 1.2), (low, best + 2 * step), (),
        height=min(640, 450 + 3 * max(0, len(shown) - 24)),
        points=shown, order=ORDER, levels=[(f"float in the paper {float_accuracy:.2f}", float_accuracy)],
    )  # fmt: skip
    plot.x_ticks = [tick for tick in TICKS if plot.x[0] <= tick <= plot.x[1]]
    plot.lines += [(pair, PAIR) for pair in pairs if all(x <= MOST and y >= low for x, y in pair)]
    ours = sorted((point.x, point.y) for point in shown if point.style == OURS)
    if len(ours) > 1:
        plot.lines.append((ours, OURS))
    return plot, [point for point in points if point.y < low]


def _ours(found: Sequence[Search]) -> list[Point]:
    """A point for each search; of those that held images back all are shown, as the test images must not choose."""
    points = []
    for search in found:
        style = REPEATED if search.recipe == search.base else OURS
        if search.choosing or _is_shorter(search):
            style = SHORTER if style is OURS else SHORTER_REPEATED
        points.append(
            Point(
                search.cost.mean, search.accuracy.mean, style, _label(search, style),
                search.cost.error, search.accuracy.error,
            )
        )  # fmt: skip
    return sorted(points, key=lambda point: (point.style != OURS, not point.style.filled))


def _is_shorter(search: Search) -> bool:
    """Whether a search has fewer epochs than its recipe."""
    return bool(search.first["epochs"] < load(search.recipe).search.epochs)


def _label(search: Search, style: Style) -> str:
    """The setting in a few characters; those of the shorter ones are in the table."""
    if not style.filled:
        return ""
    setting = search.name.removeprefix(search.recipe).strip("-").replace("-", ", ").replace("mu", "mu ")
    return f"{setting.replace('budget', 'budget ')}{'%' * ('budget' in setting)}"


def _published(recipe: str) -> list[Point]:
    points = []
    for kind, style in ((PAPER, PUBLISHED), (OTHERS, OTHER)):
        for one in POINTS[recipe][kind]:
            errors = one.errors or (None, None)
            name = one.method.replace("Bayesian Bits, ", "").replace("deterministic gates", "deterministic")
            points.append(Point(one.relative_bops, one.accuracy, style, name, errors[1], errors[0]))
    return points


def _methods(path: Path) -> tuple[list[Point], list[Sequence[tuple[float, float]]]]:
    """The methods that were trained here, as means over their seeds, and which points are one method in both settings.

    Each setting is a series of its own; of two points of one method the upper one has the label.
    """
    if not path.exists():
        return [], []
    found: dict[str, list[Point]] = {}
    groups = {key: runs for key, runs in method_runs(path).items() if not any(map(is_outdated, runs))}
    lengths = {name: {of for same, _, of in groups if same == name} for name, *_ in groups}
    for (name, setting, epochs), runs in groups.items():
        accuracy, cost = mean_of(runs, "accuracy"), mean_of(runs, "relative_bops")
        ours = is_ours(name)
        style = {"plain": (PLAIN, PLAIN_OURS), "tricks": (TRICKS, TRICKS_OURS)}[setting][ours]
        short = name.replace(f"{OUR_TITLE} ", "").replace("Learned step and width", "learned width")
        label = short.replace("mu=", "mu ") + f", {epochs} epochs" * (len(lengths[name]) > 1)
        point = Point(cost.mean, accuracy.mean, style, label, cost.error, accuracy.error)
        found.setdefault(f"{name}, {epochs}", []).append(point)
    points, pairs = [], []
    for own in found.values():
        first, *rest = sorted(own, key=lambda point: -point.y)
        points += [first, *(replace(point, label="") for point in rest)]
        pairs += [((first.x, first.y), (point.x, point.y)) for point in rest]
    return points, pairs


def method_runs(path: Path) -> dict[MethodKey, list[Mapping[str, Any]]]:
    """The runs of a file of methods by name, setting and epochs, which differ by their seeds.

    Those of a method that was changed later are left out where there are others of the same key.
    """
    groups: dict[MethodKey, list[Mapping[str, Any]]] = {}
    for row in json.loads(path.read_text())["rows"]:
        groups.setdefault((row["row"], row["setting"], row["epochs"]), []).append(row)
    return {key: [run for run in runs if not is_outdated(run)] or runs for key, runs in groups.items()}


def is_ours(row: str) -> bool:
    """Whether a row of the table of methods is of the method of this package."""
    return row.startswith(OUR_TITLE)


def is_outdated(run: Mapping[str, Any]) -> bool:
    """Whether the method was changed after a run; `experiments.methods` runs it again."""
    return "outdated" in run


def mean_of(runs: Sequence[Mapping[str, Any]], field: str) -> Estimate:
    """The mean of a number over runs."""
    return Estimate.of(run[field] for run in runs)


def caption(plot: Plot, below: Sequence[Point]) -> str:
    """What the plot cannot show, in words."""
    own = [point for point in plot.points if point.style in (OURS, SHORTER, REPEATED, SHORTER_REPEATED)]
    single = sum(point.y_error is None for point in own)
    without = f"; {single} of our {len(own)} circles, of one seed, have none" if single else ""
    parts = [f"Error bars are standard errors over seeds{without}."]
    if below:
        parts.append(f"Below the axis: {'; '.join(point.words for point in below)}.")
    if plot.unlabeled:
        parts.append(f"Without a label: {'; '.join(plot.unlabeled)}.")
    return " ".join(parts)
