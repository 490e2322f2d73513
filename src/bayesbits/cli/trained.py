"""What `bayesbits posttrain` and `bayesbits sensitivity` start from: a trained network, and a few examples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from torch import Tensor
from torch.utils._pytree import tree_map

from bayesbits.baselines.measurement import digest_of
from bayesbits.cli.console import results, say
from bayesbits.compressor import Compressor, attach
from bayesbits.front import Front
from bayesbits.posttraining.examples import count_examples
from bayesbits.recipes import Recipe, TrainedNetwork, load, trained_network
from bayesbits.recipes.folder import CHECKPOINTS
from bayesbits.recipes.loaders import inputs_of
from bayesbits.training import Interrupted, TrainingError
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
    typer.Option(
        help="none: the float network's output is what is asked for, and training loaders need give no labels; the "
        "test, which decides nothing, still needs some."
    ),
]
Examples = Annotated[int, typer.Option(min=1, help="How many training examples are used.")]
Gates = Annotated[
    Literal["hard_concrete", "hard_sigmoid", "sigmoid"], typer.Option(help="How gates get from open to closed.")
]
Out = Annotated[Path | None, typer.Option(help="The folder to write to; runs/posttrain-RECIPE by default.")]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda:1; a GPU by default, if there is one.")]


@dataclass(frozen=True)
class Start:
    """A network with quantizers attached and ranges from the examples."""

    recipe: Recipe
    """With the spec that is really used."""
    trained: TrainedNetwork
    compressor: Compressor
    batches: list[Any]
    """Pairs of inputs and labels, or the inputs alone where labels are not to be used."""
    examples: int
    """How many examples they hold."""
    weights: str
    """A digest of the weights."""
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
    final: bool = False,
) -> Start:
    """Load or train the network, and take the examples and their ranges. Channels stay: no weight makes up for them.

    `final`: a final network will be written, which must not take the place of a search's.
    """
    if recipe is None and (model is None or data is None):
        raise typer.BadParameter("give a recipe, or both --model and --data", param_hint="RECIPE")
    loaded = load(recipe, overrides or (), model=model, data=data)
    loaded = replace(loaded, spec=replace(loaded.spec, prune=False, gates=gates))
    if checkpoint is not None:
        loaded = replace(loaded, model=replace(loaded.model, checkpoint=str(checkpoint)), float_training=None)
    folder = out or Path("runs") / f"posttrain-{loaded.name.replace(':', '.')}"
    if final and (folder / CHECKPOINTS[1]).exists():
        raise ValueError(f"{folder} holds a search, whose result --within would overwrite; choose another by --out")
    trained = _trained(loaded, folder, labelled, device)
    batches = _first(trained.loaders.train, examples, next(trained.model.parameters()).device, labelled=labelled)
    inputs = [batch[0] for batch in batches] if labelled else batches
    weights = digest_of(trained.model.state_dict())
    compressor = attach(trained.model, trained.loaders.example, loaded.spec)
    compressor.calibrate(inputs, "mse")
    return Start(loaded, trained, compressor, batches, sum(map(count_examples, inputs)), weights, folder)


def show_front(front: Front, trained: TrainedNetwork, title: str, names: Sequence[str]) -> None:
    """A table of the points: what each is called, cost and accuracy."""
    title = f"{title}\nAccuracy on {trained.tested:,} test images"
    table = Table("", title=title, title_justify="left")
    for heading in ("relative BOPs", "test accuracy", ""):
        table.add_column(heading, justify="right")
    table.add_row("float", "100%", f"{trained.accuracy:.2f}%", "")
    for name, point in zip(names, front.points, strict=True):
        assert point.score is not None
        gain = f"{point.score - trained.accuracy:+.2f} points"
        table.add_row(name, f"{point.relative_bops:.3g}%", f"{point.score:.2f}%", gain)
    results().print(table)


def _trained(recipe: Recipe, folder: Path, labelled: bool, device: str | None) -> TrainedNetwork:
    """The float network; where its training stops, the same command goes on."""
    again = "start the same command again, and it goes on from there"
    try:
        return trained_network(recipe, folder, labelled=labelled, device=device, say=say)
    except Interrupted as error:
        raise Interrupted(f"{error.saved}: {again}", error.signal) from error
    except TrainingError as error:
        error.add_note(f"On the command line, {again}.")
        raise


def _first(loader: Any, count: int, device: Any, *, labelled: bool) -> list[Any]:
    """The first examples of a loader, on the device; pairs with their labels, or inputs alone."""
    taken: list[Any] = []
    left = count
    for whole in loader:
        batch = to_device(whole if labelled else inputs_of(whole), device)
        found = count_examples(batch[0] if labelled else batch)
        taken.append(tree_map(lambda value, left=left: value[:left] if isinstance(value, Tensor) else value, batch))
        left -= found
        if left <= 0:
            break
    return taken
