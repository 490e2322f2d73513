"""What `bayesbits posttrain` and `sensitivity` share: a trained network with calibrated ranges, and a front's table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from bayesbits.baselines.sensitivity_scores import digest_of
from bayesbits.cli.console import output_console, print_status
from bayesbits.cli.options import RecipeOptions
from bayesbits.cli.search import folder_name, load_recipe
from bayesbits.cli.tables import fit_table
from bayesbits.compression.attach import attach
from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.recipes import Recipe, TrainedNetwork, trained_network
from bayesbits.recipes.data import first_batches, inputs_of
from bayesbits.recipes.evaluation import measure
from bayesbits.recipes.metrics import change_of
from bayesbits.recipes.run_folder import CHECKPOINTS
from bayesbits.records.front import Front
from bayesbits.training import Interrupted, TrainingError
from bayesbits.utils.batches import count_examples, to_device


@dataclass(frozen=True)
class CalibratedNetwork:
    """A trained network with quantizers whose ranges are calibrated on examples."""

    recipe: Recipe
    """With the spec that is used."""
    trained: TrainedNetwork
    compressor: Compressor
    batches: list[Any]
    """Pairs of inputs and labels, or only inputs where labels are not used."""
    num_examples: int
    """The number of examples in the batches."""
    weights: str
    """A digest of the weights."""
    folder: Path


def calibrated_network(
    recipe: Recipe,
    checkpoint: Path | None,
    *,
    output: Path | None,
    labeled: bool,
    num_examples: int,
    gates: str,
    per_channel: bool,
    device: str | None,
    budget: Budget | None = None,
    final: bool = False,
) -> CalibratedNetwork:
    """Load or train the network, attach quantizers and calibrate their ranges.

    No channel is removed, since no weight can make up for it. A budget that cannot be reached is refused before any
    training. `final`: a final network will be written, which must not replace the one of a search.
    """
    spec = replace(recipe.spec, prune=False, gates=gates, per_channel_weights=per_channel)
    loaded = replace(recipe, spec=spec)
    if checkpoint is not None:
        loaded = replace(loaded, model=replace(loaded.model, checkpoint=str(checkpoint)), float_training=None)
    folder = output or Path("runs") / f"posttrain-{folder_name(loaded)}"
    if final and (folder / CHECKPOINTS[1]).exists():
        raise ValueError(f"{folder} holds a search, and --budget would overwrite its result; choose another --output")
    trained = _trained_network(loaded, folder, labeled, device, budget)
    batches = _first_batches(trained.loaders.train, num_examples, next(trained.model.parameters()).device, labeled)
    inputs = [batch[0] for batch in batches] if labeled else batches
    weights = digest_of(trained.model.state_dict())
    compressor = attach(trained.model, trained.loaders.example, loaded.spec)
    compressor.calibrate(inputs, "mse")
    return CalibratedNetwork(loaded, trained, compressor, batches, sum(map(count_examples, inputs)), weights, folder)


def load_without_pruning(options: RecipeOptions) -> Recipe:
    """The recipe with the changes that the options make; settings that exclude pruning, such as groups, go with it."""
    return load_recipe(replace(options, overrides=[*(options.overrides or ()), "spec.prune=false"]))


def _trained_network(
    recipe: Recipe, folder: Path, labeled: bool, device: str | None, budget: Budget | None
) -> TrainedNetwork:
    """The float network; if its training stops, the same command continues it."""
    again = "start the same command again to continue"
    try:
        return trained_network(recipe, folder, labeled=labeled, device=device, say=print_status, budget=budget)
    except Interrupted as error:
        raise Interrupted(f"{error.saved}: {again}", error.signal) from error
    except TrainingError as error:
        error.add_note(f"On the command line, {again}.")
        raise


def _first_batches(loader: Any, num_examples: int, device: Any, labeled: bool) -> list[Any]:
    """Batches with the first examples of a loader, on the device; with labels or only inputs."""
    return first_batches((to_device(batch if labeled else inputs_of(batch), device) for batch in loader), num_examples)


def show_front(front: Front, trained: TrainedNetwork, title: str, names: Sequence[str]) -> None:
    """A table of the points of a front: name, cost and the task's metric."""
    metric = trained.task.metric
    before = trained.values[metric.key]
    title = f"{title}\n{metric.name} on {trained.tested:,} test examples"

    def make_table(names: Sequence[str]) -> Table:
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

    console = output_console()
    console.print(fit_table(console, ["float", *names], make_table))


def score_on_test(compressor: Compressor, trained: TrainedNetwork) -> float:
    """The task's metric on the test set, with a sign such that higher is better."""
    metric = trained.task.metric
    return metric.score(measure(compressor.model, trained.loaders.test, (metric,))[0][metric.key])


def parse_budget(text: str, latency_table: Path | None = None) -> Budget:
    """A budget from the command line; a number alone is a percentage of the bit operations."""
    try:
        return Budget(relative_bops=float(text)) if _is_float(text) else Budget.parse(text, latency_table)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--budget") from error


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
