"""`bayesbits posttrain`: bits for a trained network, the weights untouched."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bayesbits.cli.console import say
from bayesbits.cli.search import Overrides
from bayesbits.cli.trained import (
    Checkpoint,
    Data,
    Device,
    Examples,
    Gates,
    Labels,
    Model,
    RecipeName,
    show_front,
    start,
)
from bayesbits.posttraining import PosttrainConfig
from bayesbits.posttraining import posttrain as learn_points
from bayesbits.recipes.accuracy import accuracy

FRONT = "front.json"


def posttrain(
    recipe: RecipeName = None,
    overrides: Overrides = None,
    checkpoint: Checkpoint = None,
    model: Model = None,
    data: Data = None,
    labels: Labels = "given",
    learn: Annotated[Literal["gates", "gates+ranges"], typer.Option(help="What is learned.")] = "gates+ranges",
    examples: Examples = 1024,
    steps: Annotated[int, typer.Option(min=1, help="Steps for each point.")] = PosttrainConfig.steps,
    gates: Gates = "hard_sigmoid",
    out: Annotated[Path | None, typer.Option(help="The folder to write to; runs/posttrain-RECIPE by default.")] = None,
    device: Device = None,
) -> None:
    """Learn the bits of a trained network on a few examples, as a front of eight points; no weight changes.

    Examples:

      bayesbits posttrain digits-lenet5

      bayesbits posttrain my.toml --checkpoint trained.pth --labels none
    """
    ready = start(
        recipe, overrides, checkpoint, model, data,
        out=out, labelled=labels == "given", examples=examples, gates=gates, device=device,
    )  # fmt: skip
    config = PosttrainConfig(loss="labels" if labels == "given" else "output", steps=steps)
    front = learn_points(
        ready.compressor, ready.batches, learn, config,
        evaluate=lambda network: accuracy(network, ready.trained.loaders.test), progress=say,
    )  # fmt: skip
    front.save(ready.folder / FRONT)
    show_front(front, ready.trained.accuracy, f"{learn}, learned on {sum(map(len, ready.inputs))} examples")
    say(f"{ready.folder / FRONT} holds every point: bayesbits.Front.load, and bayesbits.restore makes one final")
