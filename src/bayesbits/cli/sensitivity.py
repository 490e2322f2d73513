"""`bayesbits sensitivity`: the baseline that lowers tensors one after the other, the least sensitive first."""

from dataclasses import replace
from typing import Annotated

import typer
from rich.table import Table

from bayesbits.baselines import Sensitivity
from bayesbits.baselines import sensitivity as measure
from bayesbits.cli.console import results, say
from bayesbits.cli.search import Overrides
from bayesbits.cli.trained import Checkpoint, Data, Device, Examples, Labels, Model, Out, RecipeName, show_front, start
from bayesbits.front import Front
from bayesbits.posttraining import restore
from bayesbits.recipes.accuracy import accuracy

MEASURED = "measured.json"
SENSITIVITY = "sensitivity.json"
FRONT = "sensitivity-front.json"


def sensitivity(
    recipe: RecipeName = None,
    overrides: Overrides = None,
    checkpoint: Checkpoint = None,
    model: Model = None,
    data: Data = None,
    labels: Labels = "given",
    widths: Annotated[str, typer.Option(help="The lower widths, with commas.")] = "8,4,2",
    examples: Examples = 1024,
    out: Out = None,
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
    measured = ready.folder / MEASURED
    try:
        found = measure(
            ready.compressor, ready.batches, tuple(map(int, widths.split(","))),
            loss="labels" if labels == "given" else "output", path=measured, progress=say,
        )  # fmt: skip
    except KeyboardInterrupt as error:
        kept = f"what was measured is in {measured}" if measured.exists() else "nothing was measured yet"
        raise KeyboardInterrupt(f"{kept}; start the same command again, and it goes on from there") from error
    found.save(ready.folder / SENSITIVITY)
    results().print(_alone(found, "accuracy in percent" if labels == "given" else "minus the divergence from float"))
    points = []
    for point in found.front.points:
        restore(ready.compressor, point)
        points.append(replace(point, score=accuracy(ready.compressor.model, ready.trained.loaders.test)))
    front = Front(tuple(points))
    front.save(ready.folder / FRONT)
    asked = "with" if labels == "given" else "without"
    title = f"Lowered one after the other, measured on {ready.examples:,} examples {asked} labels"
    show_front(front, ready.trained, title, [found.last_change(point) for point in found.front.points])
    say(
        f"{ready.folder / SENSITIVITY} holds every tensor's sensitivity and every point, {FRONT} beside it the points "
        "of the table with their test accuracies"
    )


def _alone(found: Sensitivity, score: str) -> Table:
    """Every tensor alone at every lower width, the others at 16 bits."""
    scores = {(one.tensor, one.bits): one.score for one in found.alone}
    widths = sorted({bits for _, bits in scores}, reverse=True)
    title = f"Each tensor alone, on the examples: {score}; {found.reference:.4g} with all at 16 bits"
    table = Table("tensor", title=title, title_justify="left")
    for bits in widths:
        table.add_column(f"{bits} bits", justify="right")
    for tensor in dict.fromkeys(tensor for tensor, _ in scores):
        cells = [f"{scores[tensor, bits]:.4g}" if (tensor, bits) in scores else "" for bits in widths]
        table.add_row(tensor, *cells)
    return table
