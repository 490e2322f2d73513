"""Running a recipe from its data to its result, and restoring a finished run from its folder.

Every stage resumes from its own checkpoint, so that a run can be stopped at any time. The test data are used for the
float network that the search starts from and for the final network, and no decision depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from bayesbits.compression.attach import attach
from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.recipes import run_folder
from bayesbits.recipes.data import Loaders, check_data_name, open_data
from bayesbits.recipes.evaluation import check_fits
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.process import Process, current_process
from bayesbits.recipes.recipe import Recipe
from bayesbits.recipes.result import POSTTRAINING, Result, result_of_run
from bayesbits.recipes.run_state import recorded
from bayesbits.recipes.stages import Say, Stages
from bayesbits.recipes.tasks import LearningTask
from bayesbits.records.plan import Plan
from bayesbits.zoo import models


def run(
    recipe: Recipe,
    folder: str | Path,
    *,
    resume: bool = False,
    device: str | None = None,
    progress: bool = True,
    say: Say = print,
) -> Result:
    """Run a recipe: float training, search, fine-tuning and the final test.

    Args:
        recipe: The recipe.
        folder: The folder that all files of the run are written to; see `bayesbits.recipes.run_folder`.
        resume: Whether to continue a run of the same recipe in this folder, if there is one.
        device: The device, such as "cuda:0" or "cpu". By default a GPU if there is one.
        progress: Whether progress bars are shown.
        say: The function that is called with every message.

    Returns:
        The result, which is also written to `result.json`.

    Raises:
        ValueError: If the recipe cannot be run, or the folder holds another run.
        bayesbits.BudgetError: If the budget is below the smallest cost under the spec; nothing is trained then.
        bayesbits.TrainingError: If training or writing a file fails.
    """
    folder, process = Path(folder), current_process(device)
    say = say if process.first else _say_nothing
    check_recipe(recipe)
    loaders = open_data(recipe.data, process, recipe.seed)
    if process.first:
        run_folder.check(folder, recipe, resume=resume)
    finished = _finished(folder, say)
    if finished is not None:
        return finished
    stages = Stages(recipe, folder, process, loaders, progress, say)
    model = stages.new_model()
    check_fits(stages.task, model, loaders)
    stages.check_budget(model, recipe.search.budget)
    if process.first:  # not earlier: a run that cannot start leaves no files
        run_folder.prepare(folder, recipe)
    with recorded(folder, run_folder.resume_command(folder)) if process.first else nullcontext():
        float_values = stages.float_network(model)
        compressor, plan = stages.search(model)
        stages.finish(compressor, plan)
        return stages.result(compressor, plan, float_values)


def check_recipe(recipe: Recipe) -> None:
    """Raise where it is plain without data or network that a recipe cannot be run: names, and trained weights."""
    model = recipe.model
    if model.pretrained and model.checkpoint is None and recipe.float_training is None:
        raise ValueError(
            f"the recipe {recipe.name} starts from trained weights: say where they are by model.checkpoint (on the "
            "command line: --set model.checkpoint=FILE), or give a [float] table to train them"
        )
    check_data_name(recipe.data)
    if not model.factory and model.name not in models.names():
        raise ValueError(f"model.name: the zoo has no network named {model.name!r}; it has {', '.join(models.names())}")
    if model.checkpoint is not None and not Path(model.checkpoint).exists():
        raise FileNotFoundError(f"model.checkpoint: {model.checkpoint} is not there")


def _finished(folder: Path, say: Say) -> Result | None:
    """The result of a run that has ended; None where there is none, or where it is damaged and a search can redo it."""
    path = folder / run_folder.RESULT
    if not path.exists():
        return None
    try:
        result = Result.load(path)
    except ValueError:
        if (folder / run_folder.POSTTRAIN).exists():
            raise
        say(f"{path} is damaged: the run goes on from its checkpoints, and writes it again")
        return None
    if result.method == POSTTRAINING:
        raise ValueError(f"{folder} holds a result of bayesbits posttrain; choose another folder by --output")
    return result


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained float network with its data and its metrics, from which post-training starts."""

    model: nn.Module
    """The float network with its trained weights, in evaluation mode, on the device."""
    loaders: Loaders
    """The data of the recipe."""
    task: LearningTask
    """The loss and the metrics."""
    values: Mapping[str, float]
    """The metrics on the test set, by their keys."""
    tested: int
    """The number of examples in the test set."""
    process: Process
    """This process and its device."""


def trained_network(
    recipe: Recipe, folder: str | Path, *, labeled: bool = True, device: str | None = None, say: Say = print,
    budget: Budget | None = None,
) -> TrainedNetwork:  # fmt: skip
    """The float network of a recipe: loaded from its checkpoint, or trained as the recipe says.

    Args:
        recipe: The recipe.
        folder: The folder of the run, which a network that is trained here is written to.
        labeled: Whether training batches must have labels; float training always needs them.
        device: The device, such as "cuda:0" or "cpu". By default a GPU if there is one.
        say: The function that is called with every message.
        budget: What the network is to be compressed to later, if there is such a limit.

    Returns:
        The network with its data and its metrics on the test set.

    Raises:
        bayesbits.BudgetError: If the budget is below the smallest cost under the spec; nothing is trained then.
        ValueError: If the recipe has neither a checkpoint nor a `[float]` table, or the folder holds another run.
    """
    folder, process = Path(folder), current_process(device)
    labeled = labeled or (recipe.float_training is not None and not (folder / run_folder.FLOAT).exists())
    loaders = open_data(recipe.data, process, recipe.seed, labeled=labeled)
    run_folder.check(folder, recipe, resume=True)
    stages = Stages(recipe, folder, process, loaders, progress=True, say=say)
    if recipe.model.checkpoint is None and recipe.float_training is None:
        raise ValueError(
            f"the recipe {recipe.name} has no trained weights to start from: say where they are by model.checkpoint "
            "(on the command line: --checkpoint FILE), or give a [float] table to train them"
        )
    model = stages.new_model()
    check_fits(stages.task, model, loaders, labeled=labeled)
    stages.check_budget(model, budget)
    if recipe.float_training is not None:  # its checkpoints are written to the folder
        run_folder.prepare(folder, recipe)
    values = stages.float_network(model)
    run_folder.prepare(folder, recipe)
    assert values is not None
    # The data are opened again, so that the first examples do not depend on whether the network was just trained.
    loaders = open_data(recipe.data, process, recipe.seed, labeled=labeled)
    return TrainedNetwork(model.eval(), loaders, stages.task, values, stages.tested, process)


@dataclass(frozen=True)
class FinishedRun:
    """The final network of a run, with its recipe, plan, data and result."""

    recipe: Recipe
    """The recipe, with every setting."""
    compressor: Compressor
    """The final network, with bits and channels fixed."""
    plan: Plan
    """The bits of every tensor and the kept channels of every layer."""
    loaders: Loaders
    """The data of the recipe."""
    result: Result
    """The metrics and the cost of the network."""


def restore(folder: str | Path, device: str | None = None) -> FinishedRun:
    """Restore the final network of a run, its plan and its data from the run's folder.

    Args:
        folder: The folder of a finished run.
        device: The device, such as "cuda:0" or "cpu". By default a GPU if there is one.

    Returns:
        The network and everything that belongs to it.

    Raises:
        FileNotFoundError: If the run is not finished.
        ValueError: If a file is damaged.
    """
    folder = Path(folder)
    if not (folder / run_folder.RESULT).exists():
        raise FileNotFoundError(run_folder.unfinished(folder, run_folder.RESULT))
    result = Result.load(folder / run_folder.RESULT)
    recipe, process = run_folder.load_recipe(folder), current_process(device)
    loaders = open_data(recipe.data, process, recipe.seed, labeled=False)
    model = build_model(recipe.model.name, recipe.model.options, loaders.classes)[0].to(process.device)
    compressor = attach(model, loaders.example, recipe.spec)
    run_folder.load_weights(model, folder / run_folder.MODEL)
    model.eval()
    plan = Plan.load(folder / run_folder.PLAN)
    return FinishedRun(recipe, compressor, plan, loaders, result)


def write_posttrained(
    recipe: Recipe, folder: Path, compressor: Compressor, plan: Plan, process: Process, *,
    mu: float, seconds: float, scores: tuple[Score, ...], budget: Budget | None = None,
) -> Result:  # fmt: skip
    """Write a post-trained network with a final plan to a run's folder, with the same files as a search."""
    result = result_of_run(recipe, folder, compressor, plan, process, scores=scores, budget=budget)
    result = replace(
        result, method=POSTTRAINING, mu=mu, epochs=0, finetune_epochs=0, seconds=result.seconds + seconds
    )  # fmt: skip
    for name in run_folder.ABOUT_THE_PLAN:  # they belong to an earlier plan
        (folder / name).unlink(missing_ok=True)
    compressor.topology.save(folder / run_folder.TOPOLOGY)
    plan.save(folder / run_folder.PLAN)
    run_folder.save_weights(compressor.model, folder / run_folder.MODEL)
    result.save(folder / run_folder.RESULT)
    return result


def _say_nothing(_text: str) -> None:
    pass
