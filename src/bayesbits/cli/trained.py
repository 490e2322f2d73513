"""What `bayesbits posttrain` and `bayesbits sensitivity` start from: a trained network, and a few examples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from bayesbits.baselines.sensitivity_scores import digest_of
from bayesbits.cli.console import results, say
from bayesbits.cli.options import file_name
from bayesbits.cli.tables import fitted
from bayesbits.compression.compressor import Compressor, attach
from bayesbits.posttraining.examples import count_examples
from bayesbits.recipes import Recipe, TrainedNetwork, trained_network
from bayesbits.recipes.data import first_batches, inputs_of
from bayesbits.recipes.evaluation import measure
from bayesbits.recipes.metrics import change_of
from bayesbits.recipes.run_folder import CHECKPOINTS
from bayesbits.records.front import Front
from bayesbits.training import Interrupted, TrainingError
from bayesbits.training.batches import to_device

Out = Annotated[Path | None, typer.Option(help="The folder to write to; runs/posttrain-RECIPE by default.")]
Checkpoint = Annotated[Path | None, typer.Option(help="Trained weights; without them the recipe's float training.")]
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
    recipe: Recipe,
    checkpoint: Path | None,
    *,
    out: Path | None,
    labeled: bool,
    examples: int,
    gates: str,
    device: str | None,
    final: bool = False,
) -> Start:
    """Load or train the network, and take the examples and their ranges. Channels stay: no weight makes up for them.

    `final`: a final network will be written, which must not take the place of a search's.
    """
    loaded = replace(recipe, spec=replace(recipe.spec, prune=False, gates=gates))
    if checkpoint is not None:
        loaded = replace(loaded, model=replace(loaded.model, checkpoint=str(checkpoint)), float_training=None)
    folder = out or Path("runs") / f"posttrain-{file_name(loaded)}"
    if final and (folder / CHECKPOINTS[1]).exists():
        raise ValueError(f"{folder} holds a search, whose result --within would overwrite; choose another by --out")
    trained = _trained(loaded, folder, labeled, device)
    batches = _first(trained.loaders.train, examples, next(trained.model.parameters()).device, labeled=labeled)
    inputs = [batch[0] for batch in batches] if labeled else batches
    weights = digest_of(trained.model.state_dict())
    compressor = attach(trained.model, trained.loaders.example, loaded.spec)
    compressor.calibrate(inputs, "mse")
    return Start(loaded, trained, compressor, batches, sum(map(count_examples, inputs)), weights, folder)


def show_front(front: Front, trained: TrainedNetwork, title: str, names: Sequence[str]) -> None:
    """A table of the points: what each is called, cost, and the task's metric."""
    metric = trained.task.metric
    before = trained.values[metric.key]
    title = f"{title}\n{metric.name} on {trained.tested:,} test examples"

    def made(names: Sequence[str]) -> Table:
        table = Table("", title=title, title_justify="left")
        for heading in ("relative BOPs", f"test {metric.name}", ""):
            table.add_column(heading, justify="right")
        float_name, *others = names
        table.add_row(float_name, "100%", metric.text(before), "")
        for name, point in zip(others, front.points, strict=True):
            assert point.score is not None
            value = metric.score(point.score)
            table.add_row(name, f"{point.relative_bops:.3g}%", metric.text(value), change_of(before, value, metric))
        return table

    console = results()
    console.print(fitted(console, ["float", *names], made))


def score_on_test(compressor: Compressor, trained: TrainedNetwork) -> float:
    """The task's metric on the test set, so that higher is better."""
    metric = trained.task.metric
    return metric.score(measure(compressor.model, trained.loaders.test, (metric,))[0][metric.key])


def _trained(recipe: Recipe, folder: Path, labeled: bool, device: str | None) -> TrainedNetwork:
    """The float network; where its training stops, the same command goes on."""
    again = "start the same command again, and it goes on from there"
    try:
        return trained_network(recipe, folder, labeled=labeled, device=device, say=say)
    except Interrupted as error:
        raise Interrupted(f"{error.saved}: {again}", error.signal) from error
    except TrainingError as error:
        error.add_note(f"On the command line, {again}.")
        raise


def _first(loader: Any, count: int, device: Any, *, labeled: bool) -> list[Any]:
    """The first examples of a loader, on the device; pairs with their labels, or inputs alone."""
    return first_batches((to_device(batch if labeled else inputs_of(batch), device) for batch in loader), count)
