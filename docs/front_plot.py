"""Post-training of the four ResNets of CIFAR-10 as one plot: accuracy over cost, a color for each network.

Lines with circles are the networks within budgets (`budgets-resnetNN.json`): the mean where there are several seeds,
with a band from the lowest to the highest. Plain lines are learned fronts (`posttrain-resnetNN.json`), with the band of
their seeds, and dashed ones the same with adaptive rounding of the weights; squares are 8/8.
"""

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from docs.drawing import COLORS, FAINT, Plot, Point, Style
from docs.searches import EXPERIMENTS

METHODS = {"gates+ranges": True, "gates+ranges adaround": False}
"""The methods whose fronts are drawn, and whether their lines are plain."""
DEPTHS = (20, 32, 44, 56)
COSTS, ACCURACIES = (1.0, 11.0), (88.0, 94.0)
TICKS = (1, 1.5, 2, 2.5, 3, 4, 5, 6.25)
STEPS = 60
IMAGES = 10000
"""All test images: accuracies on a part of them lie on another level."""
LEGEND = (
    Style("learned within a budget", FAINT, filled=False),
    Style("8 bits for all weights and activations", FAINT, "square"),
    Style("learned fronts, mean and span of seeds", FAINT, "band"),
    Style("with adaptive rounding of weights (AdaRound)", FAINT, "band", filled=False),
)

Places = Sequence[tuple[float, float]]


def front_plot(folder: Path = EXPERIMENTS) -> Plot:
    """The plot of all networks of which there are results."""
    plot = Plot(
        "Post-training ResNets on CIFAR-10: bits and ranges are learned, weights are not trained",
        "bit operations, % of those at 32 x 32 bits (logarithmic; left is cheaper)", "accuracy on the test images, %",
        COSTS, ACCURACIES, TICKS, height=480, legend=LEGEND, y_ticks=(88, 89, 90, 91, 92, 93, 94),
    )  # fmt: skip
    for color, depth in zip(COLORS, DEPTHS, strict=False):
        front, budgets = (_read(folder / f"{kind}-resnet{depth}.json") for kind in ("posttrain", "budgets"))
        for method, plain in METHODS.items() if front is not None else ():
            line = [place for place in mean_and_band(fronts_of(front, method)) if _shown(*place[:2])]
            style = Style(f"ResNet-{depth}, {method}", color, filled=plain)
            plot.lines.append(([(cost, mean) for cost, mean, _, _ in line], style))
            plot.bands.append(([(cost, max(low, ACCURACIES[0]), high) for cost, _, low, high in line], style))
        if budgets is not None:
            _add_budgets(plot, budgets["rows"], depth, color)
        if known := front or budgets:
            value = known["float_accuracy"]
            plot.lines.append(([(6.7, value), (COSTS[1], value)], Style("", color, filled=False)))
            plot.notes.append((6.75, value, f"ResNet-{depth} float {value:.2f}", color))
    return plot


def _add_budgets(plot: Plot, rows: Sequence[Mapping[str, Any]], depth: int, color: str) -> None:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["budget"].endswith("bops"):
            groups.setdefault((row["method"], row["budget"]), []).append(row)
    line = []
    for (method, _), own in groups.items():
        cost, accuracy = (fmean(row[key] for row in own) for key in ("relative_bops", "accuracy"))
        if method == "8/8":
            plot.points.append(Point(cost, accuracy, Style(f"ResNet-{depth} at 8/8", color, "square")))
        elif method == "learned" and _shown(cost, accuracy):
            values = [row["accuracy"] for row in own]
            line.append((cost, accuracy, min(values), max(values)))
            plot.points.append(Point(cost, accuracy, Style(f"ResNet-{depth} within a budget", color, filled=False)))
    line.sort()
    plot.lines.append(([place[:2] for place in line], Style(f"ResNet-{depth} within budgets", color)))
    if any(low < high for _, _, low, high in line):
        plot.bands.append(([(cost, low, high) for cost, _, low, high in line], Style("", color)))


def fronts_of(result: Mapping[str, Any], method: str) -> list[Places]:
    """The fronts of all seeds: the points with which no cheaper one is as accurate, the cheapest first.

    A front ends at the largest cost that was tested, with its best accuracy.
    """
    found = []
    for run in result["methods"].get(method, ()):
        best: list[tuple[float, float]] = []
        for cost, accuracy in sorted(_place(point) for point in run["points"]):
            if not best or accuracy > best[-1][1]:
                best.append((cost, accuracy))
        last = max(point["relative_bops"] for point in run["points"])
        found.append(best if best[-1][0] == last else [*best, (last, best[-1][1])])
    return found


def mean_and_band(fronts: Sequence[Places]) -> list[tuple[float, float, float, float]]:
    """Cost, mean, lowest and highest accuracy over the costs that all fronts have."""
    if not fronts:
        return []
    low, high = max(front[0][0] for front in fronts), min(front[-1][0] for front in fronts)
    if low >= high:
        return []
    found = []
    for step in range(STEPS + 1):
        cost = exp(log(low) + (log(high) - log(low)) * step / STEPS)
        values = [at(front, cost) for front in fronts]
        found.append((cost, fmean(values), min(values), max(values)))
    return found


def at(front: Places, cost: float) -> float:
    """The accuracy of a front at a cost: on the line between its neighbors, over the logarithm of the cost."""
    below = [place for place in front if place[0] <= cost] or [front[0]]
    above = [place for place in front if place[0] > cost] or [front[-1]]
    (left, first), (right, second) = below[-1], above[0]
    return first if right <= left else first + (second - first) * (log(cost) - log(left)) / (log(right) - log(left))


def _place(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["relative_bops"], row["accuracy"]


def _shown(cost: float, accuracy: float) -> bool:
    return COSTS[0] <= cost <= COSTS[1] and ACCURACIES[0] <= accuracy <= ACCURACIES[1]


def _read(path: Path) -> Any:
    """The content of a file; None where there is none, or where it was tested on a part of the test images."""
    content = json.loads(path.read_text()) if path.exists() else None
    return content if content is not None and content["images"] == IMAGES else None
