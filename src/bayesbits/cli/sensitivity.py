"""`bayesbits sensitivity`: the baseline that lowers tensors one after the other, the least sensitive first."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bayesbits.baselines import sensitivity as measure
from bayesbits.cli.console import say
from bayesbits.cli.search import Overrides
from bayesbits.cli.trained import Checkpoint, Data, Device, Examples, Labels, Model, RecipeName, show_front, start
from bayesbits.front import Front
from bayesbits.posttraining import restore
from bayesbits.recipes.accuracy import accuracy

MEASURED = "measured.json"
SENSITIVITY = "sensitivity.json"


def sensitivity(
    recipe: RecipeName = None,
    overrides: Overrides = None,
    checkpoint: Checkpoint = None,
    model: Model = None,
    data: Data = None,
    labels: Labels = "given",
    widths: Annotated[str, typer.Option(help="The lower widths, with commas.")] = "8,4,2",
    examples: Examples = 1024,
    out: Annotated[Path | None, typer.Option(help="The folder to write to; runs/posttrain-RECIPE by default.")] = None,
    device: Device = None,
) -> None:
    """Measure how sensitive every tensor of a trained network is, and lower them in that order.

    A run that was stopped goes on when it is started again.

    Examples:

      bayesbits sensitivity digits-lenet5 --widths 4,2
    """
    if not all(width.strip().isdigit() for width in widths.split(",")):
        raise typer.BadParameter(f"{widths!r} are no widths; give them as 8,4,2", param_hint="--widths")
    ready = start(
        recipe, overrides, checkpoint, model, data,
        out=out, labelled=labels == "given", examples=examples, gates="hard_sigmoid", device=device,
    )  # fmt: skip
    found = measure(
        ready.compressor, ready.batches, tuple(map(int, widths.split(","))),
        loss="labels" if labels == "given" else "output", path=ready.folder / MEASURED, progress=say,
    )  # fmt: skip
    found.save(ready.folder / SENSITIVITY)
    points = []
    for point in found.front.points:
        restore(ready.compressor, point)
        points.append(replace(point, score=accuracy(ready.compressor.model, ready.trained.loaders.test)))
    show_front(Front(tuple(points)), ready.trained.accuracy, "Lowered in the order of their sensitivity")
    say(f"{ready.folder / SENSITIVITY} holds every tensor's sensitivity, and every point")
