"""Runs `bayesbits sensitivity`: the baseline that lowers the bits of tensors one by one, the least sensitive first."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bayesbits.baselines import Sensitivity, sensitivity
from bayesbits.baselines.sensitivity_scores import ScoreFunction
from bayesbits.cli.calibrated_network import (
    calibrated_network,
    load_without_pruning,
    parse_budget,
    score_on_test,
    show_front,
)
from bayesbits.cli.console import output_console, print_status
from bayesbits.cli.options import RecipeOptions
from bayesbits.cli.tables import fit_table
from bayesbits.posttraining import restore
from bayesbits.recipes.metrics import Metric
from bayesbits.records.front import Front

MEASUREMENTS = "measured.json"
SENSITIVITY = "sensitivity.json"
FRONT = "sensitivity-front.json"


def run_sensitivity(
    options: RecipeOptions, checkpoint: Path | None, output: Path | None, *, labels: str, bits: tuple[int, ...],
    num_examples: int, per_channel: bool, budget: str | None, device: str | None,
) -> None:  # fmt: skip
    """Measure every tensor, lower the bits in the order of sensitivity, and show both."""
    limit = None if budget is None else parse_budget(budget)
    recipe = load_without_pruning(options)
    if labels == "none" and not recipe.task.has_logits:
        raise ValueError(
            "without labels tensors are compared by class probabilities, and the network of this task has none: use "
            "labels, or learn bits by `bayesbits posttrain --labels none`"
        )
    network = calibrated_network(
        recipe, checkpoint, output=output, labeled=labels == "given", num_examples=num_examples, gates="hard_sigmoid",
        per_channel=per_channel, device=device, budget=limit,
    )  # fmt: skip
    measurements, metric = network.folder / MEASUREMENTS, network.trained.task.metric
    is_accuracy = (metric.name, metric.unit) == ("accuracy", "%")
    try:
        found = sensitivity(
            network.compressor, network.batches, bits, budget=limit, loss="labels" if labels == "given" else "output",
            path=measurements, progress=print_status,
            score_fn=_score_function(metric) if labels == "given" and not is_accuracy else None,
        )  # fmt: skip
    except KeyboardInterrupt as error:
        kept = f"the measurements are in {measurements}" if measurements.exists() else "nothing was measured yet"
        raise KeyboardInterrupt(f"{kept}; start the same command again to continue") from error
    found.save(network.folder / SENSITIVITY)
    console = output_console()
    if labels == "given":
        unit = " in percent" if metric.unit == "%" else ""
        console.print(_single_tensors(found, f"{metric.name}{unit}", metric.score, console))
    else:
        console.print(_single_tensors(found, "minus the divergence from float", float, console))
    listed = {found.last_change(point): point for point in found.front.points}
    if found.within is not None:
        listed[f"within {limit}: {found.last_change(found.within)}"] = found.within
    points = []
    for point in listed.values():
        restore(network.compressor, point)
        points.append(replace(point, score=score_on_test(network.compressor, network.trained)))
    front = Front(tuple(points))
    front.save(network.folder / FRONT)
    with_labels = "with" if labels == "given" else "without"
    title = f"One tensor after the other lowered, measured on {network.num_examples:,} examples {with_labels} labels"
    show_front(front, network.trained, title, list(listed))
    print_status(
        f"{network.folder / SENSITIVITY} holds the sensitivity of every tensor and every point, {FRONT} beside it the "
        "points of the table with their scores on the test set"
    )


def _score_function(metric: Metric) -> ScoreFunction:
    """The metric of a batch, with a sign such that higher is better."""

    def score(output: Any, targets: Any) -> Tensor:
        return torch.tensor(metric.score(metric.value(metric.gather(output, targets))), dtype=torch.float64)

    score.__qualname__ = metric.key
    return score


def _single_tensors(found: Sensitivity, what: str, read: Callable[[float], float], console: Console) -> Table:
    """A table of every tensor alone at every lower bit width, the others at 16 bits."""
    scores = {(one.tensor, one.bits): read(one.score) for one in found.alone}
    widths = sorted({bits for _, bits in scores}, reverse=True)
    title = f"Each tensor alone, on the examples: {what}; {read(found.reference):.4g} with all at 16 bits"
    tensors = list(dict.fromkeys(tensor for tensor, _ in scores))

    def make_table(names: Sequence[str]) -> Table:
        table = Table("tensor", title=title, title_justify="left")
        for bits in widths:
            table.add_column(f"{bits} bits", justify="right")
        for name, tensor in zip(names, tensors, strict=True):
            cells = [f"{scores[tensor, bits]:.4g}" if (tensor, bits) in scores else "" for bits in widths]
            table.add_row(name, *cells)
        return table

    return fit_table(console, tensors, make_table)
