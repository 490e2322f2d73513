"""What `bayesbits posttrain` and `bayesbits sensitivity` start from: a trained network, and a few examples."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from bayesbits.cli.console import results, say
from bayesbits.compressor import Compressor, attach
from bayesbits.front import Front
from bayesbits.recipes import TrainedNetwork, load, trained_network
from bayesbits.training.batches import to_device

RecipeName = Annotated[
    str | None, typer.Argument(help="A recipe that the package carries (see `bayesbits recipes`), or a TOML file.")
]
Checkpoint = Annotated[Path | None, typer.Option(help="Trained weights; without them the recipe's float training.")]
Model = Annotated[
    str | None,
    typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="Your network: a function that returns an nn.Module."),
]
Data = Annotated[
    str | None,
    typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="Your data, as for `bayesbits search`."),
]
Labels = Annotated[
    Literal["given", "none"],
    typer.Option(help="none: labels are not looked at, and the float network's output is what is asked for."),
]
Examples = Annotated[int, typer.Option(min=1, help="How many training examples are used.")]
Gates = Annotated[
    Literal["hard_concrete", "hard_sigmoid", "sigmoid"], typer.Option(help="How gates get from open to closed.")
]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda:1; a GPU by default, if there is one.")]


@dataclass(frozen=True)
class Start:
    """A network with quantizers attached and ranges from the examples."""

    trained: TrainedNetwork
    compressor: Compressor
    inputs: list[Any]
    batches: list[Any]
    """Pairs of inputs and labels, or the inputs alone where labels are not to be used."""
    folder: Path


def start(
    recipe: str | None,
    overrides: list[str] | None,
    checkpoint: Path | None,
    model: str | None,
    data: str | None,
    *,
    out: Path | None,
    labelled: bool,
    examples: int,
    gates: str,
    device: str | None,
) -> Start:
    """Load or train the network, and take the examples and their ranges. Channels stay: no weight makes up for them."""
    if recipe is None and (model is None or data is None):
        raise typer.BadParameter("give a recipe, or both --model and --data", param_hint="RECIPE")
    loaded = load(recipe, overrides or (), model=model, data=data)
    if checkpoint is not None:
        loaded = replace(loaded, model=replace(loaded.model, checkpoint=str(checkpoint)), float_training=None)
    folder = out or Path("runs") / f"posttrain-{loaded.name.replace(':', '.')}"
    trained = trained_network(loaded, folder, device=device, say=say)
    pairs = _first(trained.loaders.train, examples, next(trained.model.parameters()).device)
    inputs = [inputs for inputs, _ in pairs]
    compressor = attach(trained.model, trained.loaders.example, replace(loaded.spec, prune=False, gates=gates))
    compressor.calibrate(inputs, "mse")
    return Start(trained, compressor, inputs, pairs if labelled else inputs, folder)


def show_front(front: Front, float_accuracy: float, title: str) -> None:
    """A table of the points: cost and accuracy."""
    table = Table("", title=title, title_justify="left")
    for heading in ("relative BOPs", "test accuracy", ""):
        table.add_column(heading, justify="right")
    table.add_row("float", "100%", f"{float_accuracy:.2f}%", "")
    for point in front.points:
        name = "" if point.mu is None else f"mu = {point.mu:g}"
        assert point.score is not None
        gain = f"{point.score - float_accuracy:+.2f} points"
        table.add_row(name, f"{point.relative_bops:.3g}%", f"{point.score:.2f}%", gain)
    results().print(table)


def _first(batches: Any, count: int, device: Any) -> list[tuple[Any, Any]]:
    """The first examples of a loader, on the device."""
    taken: list[tuple[Any, Any]] = []
    for batch in batches:
        inputs, labels = to_device(batch, device)
        left = count - sum(len(one) for _, one in taken)
        taken.append((inputs[:left], labels[:left]))
        if left <= len(labels):
            break
    return taken
