"""`bayesbits search`: run a recipe from its data to its result."""

from pathlib import Path
from typing import Annotated

import typer

from bayesbits.cli import options
from bayesbits.cli.console import results, say
from bayesbits.cli.tables import file_table, layer_table, result_table
from bayesbits.recipes import Recipe, Result, run
from bayesbits.recipes.process import is_first_process
from bayesbits.recipes.run_folder import RECIPE, resume_command
from bayesbits.report import write_report
from bayesbits.training import TrainingError


def search(
    recipe: options.RecipeName = None,
    overrides: options.Overrides = None,
    out: options.Out = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in that folder; RUN/recipe.toml as the recipe is enough."),
    ] = False,
    model: options.Model = None,
    data: options.Data = None,
    task: options.TaskName = None,
    loss: options.LossName = None,
    metric: options.MetricName = None,
    device: options.Device = None,
) -> None:
    """Learn bits and channels of a network by a recipe, and test what came of it.

    Examples:

      bayesbits search digits-lenet5 --set search.mu=0.02

      bayesbits search cifar10-vgg7 --set data.folder=/data --out runs/vgg7

      bayesbits search --model mine:network --data mine:loaders --set search.gates.lr=0.03

      bayesbits search --model mine:unet --data mine:loaders --task segmentation

      bayesbits search runs/vgg7/recipe.toml --resume
    """
    loaded = options.asked_recipe(recipe, overrides, model=model, data=data, task=task, loss=loss, metric=metric)
    folder = out or _folder(recipe, resume) or Path("runs") / options.file_name(loaded)
    result = run_with_way_on(loaded, folder, resume=resume, device=device)
    show(result)
    finish(result, folder)


def _folder(recipe: str | None, resume: bool) -> Path | None:
    """The folder of the run whose own recipe is given to go on with."""
    path = Path(recipe or "")
    return path.parent if resume and path.name == RECIPE and path.is_file() else None


def run_with_way_on(recipe: Recipe, folder: Path, *, resume: bool, device: str | None = None) -> Result:
    """Run a recipe; an error that leaves something to go on from says how."""
    try:
        return run(recipe, folder, resume=resume, device=device, say=say)
    except (TrainingError, KeyboardInterrupt) as error:
        if (folder / RECIPE).is_file():
            if isinstance(error, KeyboardInterrupt):
                error.add_note("Nothing is lost but the work since the last checkpoint.")
            error.add_note(f"Go on with: {resume_command(folder)}")
        raise


def show(result: Result) -> None:
    """What a finished run came to, once for all processes."""
    if not is_first_process():
        return
    console = results()
    for table in (layer_table(result.layers, console), result_table(result)):
        console.print(table)
        console.print()
    console.print(f"{result.seconds:.0f} s of training on {result.device}", highlight=False)
    for stage, execution in result.executions.items():
        console.print(f"{stage}: {execution}", highlight=False, soft_wrap=True)
    console.print()


def finish(result: Result, folder: Path) -> None:
    """Write the page, show what lies in the folder, and say so where almost nothing was compressed."""
    if not is_first_process():
        return
    page = write_report(folder)
    console = results()
    console.print(file_table(folder))
    if result.advice:
        console.print(f"\n{result.advice}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nreport: {page}", markup=False, highlight=False, soft_wrap=True)
