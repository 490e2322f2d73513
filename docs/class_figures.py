"""What compression costs each class, and what fine-tuning changes, from the accuracies in the files of results."""

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from markupsafe import Markup

from bayesbits.report.svg import Axis
from bayesbits.sweeps.estimate import Estimate
from docs.drawing import COLORS, FAINT, GRID, WIDTH, Style, draw_line, draw_text, marker
from docs.figures import image, mean_of_seeds
from docs.searches import EXPERIMENTS, Search, accuracy_text, searches

CLASSES = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "fashion": ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
}
FAR = 3
"""A class differs from the mean if it is so many standard errors away."""


def fine_tuning(folder: Path = EXPERIMENTS) -> list[dict[str, Any]]:
    """Rows of the searches with fine-tuning: accuracy before and after it."""
    rows = []
    for search in searches(folder):
        if all(result.get("search_accuracy") is not None for result in search.results):
            change = search.estimate(lambda result: result["accuracy"] - result["search_accuracy"])
            error = "" if change.error is None else f" ± {change.error:.2f}"
            rows.append(
                {
                    "search": f"`{search.name}`",
                    "seeds": search.seeds,
                    "epochs of fine-tuning": search.first["finetune_epochs"],
                    "before": accuracy_text(search.estimate(lambda result: result["search_accuracy"])),
                    "after": accuracy_text(search.accuracy),
                    "change": f"{change.mean:+.2f}{error}",
                }
            )
    return rows


def class_changes(search: Search) -> list[Estimate]:
    """By how many points the accuracy of each class changes from the float to the final network, over the seeds."""
    pairs = [(one["class_accuracies"], one["float_class_accuracies"]) for one in search.results]
    return [
        Estimate.of(
            after[place] - before[place] for after, before in pairs if None not in (after[place], before[place])
        )
        for place in range(len(pairs[0][0]))
    ]


def class_names(search: Search, number: int) -> list[str]:
    """The names of the classes, or their numbers."""
    known = next((names for start, names in CLASSES.items() if search.name.startswith(start)), ())
    return list(known) if len(known) == number else [str(place) for place in range(number)]


def classes(search: Search) -> Markup:
    """The change of each class's accuracy, with its standard error, beside that of all."""
    changes = class_changes(search)
    names = class_names(search, len(changes))
    left, right, top, row = 110.0, WIDTH - 24.0, 44.0, 21.0
    floor = top + row * len(changes)
    mean = fmean(change.mean for change in changes)
    reach = max(0.5, *(abs(end) for change in changes for end in change.ends)) * 1.08
    across = Axis(-reach, reach, left, right)
    parts = []
    for tick in across.ticks():
        x = across.position(tick)
        parts += [
            draw_line(x, top, x, floor, GRID),
            draw_text(x, floor + 15, f"{tick:+g}", anchor="middle", color=FAINT),
        ]
    parts.append(draw_line(across.position(0), top, across.position(0), floor, FAINT))
    parts.append(draw_line(across.position(mean), top, across.position(mean), floor, COLORS[0], dashes="5 4"))
    for place, (name, change) in enumerate(zip(names, changes, strict=True)):
        y = top + row * (place + 0.5)
        x, (low, high) = across.position(change.mean), (across.position(end) for end in change.ends)
        parts.append(draw_text(left - 10, y + 4, name, anchor="end"))
        if change.error:
            parts.append(draw_line(low, y, high, y, COLORS[1], width=1.6))
        parts.append(marker(Style("", COLORS[1]), x, y))
    words = f"points of accuracy from float to compressed; the dashed line is the mean, {mean:+.2f}"
    parts.append(draw_text((left + right) / 2, floor + 33, words, anchor="middle"))
    return image(f"{search.name}: change of accuracy by class, {mean_of_seeds(search)}", floor + 44, *parts)


def class_sentence(search: Search) -> str:
    """Whether compression costs some classes more than others, as far as the seeds can tell."""
    changes = class_changes(search)
    names = class_names(search, len(changes))
    mean = fmean(change.mean for change in changes)
    worst, best = (pick(zip(changes, names, strict=True), key=lambda one: one[0].mean) for pick in (min, max))
    found = (
        f"From float to the compressed network accuracy changes by {mean:+.2f} points on average over the classes: by "
        f"{worst[0].mean:+.2f} for {worst[1]} and by {best[0].mean:+.2f} for {best[1]} at the ends."
    )
    if search.seeds < 2:
        return f"{found} With one seed, differences between classes cannot be told from chance."
    error = pooled_error(changes)
    apart = [
        f"{name} ({change.mean - mean:+.2f})"
        for change, name in zip(changes, names, strict=True)
        if abs(change.mean - mean) > FAR * error
    ]
    told = f"{FAR} standard errors ({error:.2f} points each, pooled over the classes of {search.seeds} seeds)"
    return f"{found} Away from the mean by more than {told}: {', '.join(apart) or 'none'}."


def pooled_error(changes: Sequence[Estimate]) -> float:
    """The standard error of a class's mean change, if it is the same for all: from the variances of all classes."""
    variances = [variance(change.values) for change in changes]
    return sqrt(fmean(variances) / len(changes[0].values))
