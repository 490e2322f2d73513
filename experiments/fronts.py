"""Fronts of several methods: compared point by point, and drawn where matplotlib is installed."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

ROUNDED = " adaround"
COST_OF_8_8 = 6.25
TICKS = (0.7, 1, 1.5, 2, 3, 4, COST_OF_8_8, 10, 20)


def compare(result: dict[str, Any]) -> dict[str, Any]:
    """By how many points learned fronts lie above the sensitivity front, above each other, and above 8/8.

    A point is held against the best that the other front of the same seed has on the test images at the same cost or
    below, and against the line between its neighbors in cost, whichever is higher: among many points that is a little
    too good, by luck, and the comparison is the harder for it. Points cheaper than all of the other front are left out.
    """
    found: dict[str, Any] = {}
    for better, worse in (("gates", "sensitivity"), ("gates+ranges", "sensitivity"), ("gates+ranges", "gates")):
        for rounding in ("", ROUNDED):
            rows = _over(result["methods"], better + rounding, worse + rounding)
            if rows:
                found[f"{better}{rounding} over {worse}{rounding}"] = {
                    "points_better_by_on_average": mean(row["points_better_by"] for row in rows),
                    "points_of_the_front_above": sum(row["points_better_by"] > 0 for row in rows),
                    "points_of_the_front": len(rows),
                    "points": rows,
                }
    for name in ("gates", "gates+ranges"):
        within = [
            run | {"points": [point for point in run["points"] if point["relative_bops"] <= COST_OF_8_8]}
            for run in result["methods"].get(name, ())
        ]
        methods = result["methods"] | {name: within}
        rows = _over(methods, "8/8 minmax", name) + _over(methods, "8/8 mse", name)
        if rows:
            found[f"{name} over 8/8 within {COST_OF_8_8}%"] = [-row["points_better_by"] for row in rows]
    return found


def _over(methods: dict[str, Any], better: str, worse: str) -> list[dict[str, Any]]:
    """Every point of one method, and by how much it is better than the other method's front of the same seed."""
    fronts = {run["seed"]: run["points"] for run in methods.get(worse, ())}
    rows = []
    for run in methods.get(better, ()):
        for point in run["points"]:
            other = _at(fronts.get(run["seed"], ()), point["relative_bops"])
            if other is not None:
                rows.append(
                    {
                        "seed": run["seed"],
                        "relative_bops": point["relative_bops"],
                        "points_better_by": point["accuracy"] - other,
                    }
                )
    return rows


def _at(points: Sequence[dict[str, Any]], cost: float) -> float | None:
    """The accuracy of a front at a cost; None below its cheapest point."""
    places = sorted((point["relative_bops"], point["accuracy"]) for point in points)
    below = [place for place in places if place[0] <= cost + 1e-9]
    above = places[len(below) :]
    if not below:
        return None
    best = max(accuracy for _, accuracy in below)
    if not above:
        return best
    (left, low), (right, high) = below[-1], above[0]
    return max(best, low + (high - low) * (cost - left) / (right - left))


def draw(result: dict[str, Any], path: Path) -> Path | None:
    """Accuracy over cost, a color for each method and a line for each seed; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for index, (method, runs) in enumerate(sorted(result["methods"].items())):
        for number, one in enumerate(runs):
            points = sorted((point["relative_bops"], point["accuracy"]) for point in one["points"])
            costs, accuracies = zip(*points, strict=True)
            style = "o" if len(points) == 1 else "o-" if len(points) < 16 else "-"
            label = None if number else method
            axes.plot(costs, accuracies, style, markersize=4, color=f"C{index}", alpha=0.6, label=label)
    axes.axhline(result["float_accuracy"], color="black", linestyle=":", label="float")
    axes.set_xscale("log")
    axes.set_xticks(TICKS, labels=map(str, TICKS), minor=False)
    axes.minorticks_off()
    axes.set_xlim(TICKS[0], TICKS[-1])
    axes.grid(alpha=0.3)
    axes.set_xlabel("bit operations, % of 32 x 32 bits")
    axes.set_ylabel(f"accuracy on {result['images']} {result['tested_on']}, %")
    axes.set_ylim(max(0.0, result["float_accuracy"] - 25), result["float_accuracy"] + 1)
    axes.set_title(f"post-training {result['model']}")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return path
