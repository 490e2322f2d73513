"""`bayesbits sensitivity`: the baseline that lowers tensors one after the other, the least sensitive first."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bayesbits.baselines import Sensitivity
from bayesbits.baselines import sensitivity as measure
from bayesbits.baselines.sensitivity_scores import ScoreFunction
from bayesbits.cli import options
from bayesbits.cli.console import results, say
from bayesbits.cli.tables import fitted
from bayesbits.cli.trained import Checkpoint, Examples, Labels, Out, score_on_test, show_front, start
from bayesbits.posttraining import restore
from bayesbits.recipes.metrics import Metric
from bayesbits.records.front import Front

MEASURED = "measured.json"
SENSITIVITY = "sensitivity.json"
FRONT = "sensitivity-front.json"


def sensitivity(
    recipe: options.RecipeName = None,
    overrides: options.Overrides = None,
    checkpoint: Checkpoint = None,
    model: options.Model = None,
    data: options.Data = None,
    task: options.TaskName = None,
    loss: options.LossName = None,
    metric: options.MetricName = None,
    labels: Labels = "given",
    widths: Annotated[str, typer.Option(help="The lower widths, with commas.")] = "8,4,2",
    examples: Examples = 1024,
    out: Out = None,
    device: options.Device = None,
) -> None:
    """Measure how sensitive every tensor of a trained network is, and lower them in that order.

    A run that was stopped goes on when it is started again.

    Examples:

      bayesbits sensitivity digits-lenet5 --widths 4,2
    """
    if not all(width.strip().isdigit() for width in widths.split(",")):
        raise typer.BadParameter(f"{widths!r} are no widths; give them as 8,4,2", param_hint="--widths")
    loaded = options.asked_recipe(recipe, overrides, model=model, data=data, task=task, loss=loss, metric=metric)
    if labels == "none" and not loaded.task.has_logits:
        raise ValueError(
            "without labels tensors are compared by the probabilities of classes, which the network of this task does "
            "not give: use labels, or learn bits by `bayesbits posttrain --labels none`"
        )
    ready = start(
        loaded, checkpoint, out=out, labeled=labels == "given", examples=examples, gates="hard_sigmoid", device=device,
    )  # fmt: skip
    measured, judged = ready.folder / MEASURED, ready.trained.task.metric
    try:
        found = measure(
            ready.compressor, ready.batches, tuple(map(int, widths.split(","))),
            loss="labels" if labels == "given" else "output", path=measured, progress=say,
            score_fn=_score(judged) if labels == "given" and (judged.name, judged.unit) != ("accuracy", "%") else None,
        )  # fmt: skip
    except KeyboardInterrupt as error:
        kept = f"what was measured is in {measured}" if measured.exists() else "nothing was measured yet"
        raise KeyboardInterrupt(f"{kept}; start the same command again, and it goes on from there") from error
    found.save(ready.folder / SENSITIVITY)
    unit = " in percent" if judged.unit == "%" else ""
    console = results()
    if labels == "given":
        console.print(_alone(found, f"{judged.name}{unit}", judged.score, console))
    else:
        console.print(_alone(found, "minus the divergence from float", float, console))
    points = []
    for point in found.front.points:
        restore(ready.compressor, point)
        points.append(replace(point, score=score_on_test(ready.compressor, ready.trained)))
    front = Front(tuple(points))
    front.save(ready.folder / FRONT)
    asked = "with" if labels == "given" else "without"
    title = f"Lowered one after the other, measured on {ready.examples:,} examples {asked} labels"
    show_front(front, ready.trained, title, [found.last_change(point) for point in found.front.points])
    say(
        f"{ready.folder / SENSITIVITY} holds every tensor's sensitivity and every point, {FRONT} beside it the points "
        "of the table with their scores on the test set"
    )


def _score(metric: Metric) -> ScoreFunction:
    """The metric of a batch, so that higher is better."""

    def score(output: Any, targets: Any) -> Tensor:
        return torch.tensor(metric.score(metric.value(metric.gather(output, targets))), dtype=torch.float64)

    score.__qualname__ = metric.key
    return score


def _alone(found: Sensitivity, what: str, read: Callable[[float], float], console: Console) -> Table:
    """Every tensor alone at every lower width, the others at 16 bits."""
    scores = {(one.tensor, one.bits): read(one.score) for one in found.alone}
    widths = sorted({bits for _, bits in scores}, reverse=True)
    title = f"Each tensor alone, on the examples: {what}; {read(found.reference):.4g} with all at 16 bits"
    tensors = list(dict.fromkeys(tensor for tensor, _ in scores))

    def made(names: Sequence[str]) -> Table:
        table = Table("tensor", title=title, title_justify="left")
        for bits in widths:
            table.add_column(f"{bits} bits", justify="right")
        for name, tensor in zip(names, tensors, strict=True):
            cells = [f"{scores[tensor, bits]:.4g}" if (tensor, bits) in scores else "" for bits in widths]
            table.add_row(name, *cells)
        return table

    return fitted(console, tensors, made)
