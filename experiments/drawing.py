"""Fronts as a picture, where matplotlib is installed."""

from pathlib import Path
from typing import Any

TICKS = (0.7, 1, 1.5, 2, 3, 4, 6.25, 10, 20)  # 6.25% is 8/8


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
