"""`bayesbits search`: run a recipe from its data to its result."""

from pathlib import Path
from typing import Annotated

import typer

from bayesbits.cli.console import results, say
from bayesbits.cli.report import report
from bayesbits.cli.tables import file_table, layer_table, result_table
from bayesbits.recipes import Recipe, Result, load, run
from bayesbits.recipes.machine import is_first_process
from bayesbits.training import TrainingError

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as search.mu=0.1; may be repeated."),
]


def search(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe that the package carries (see `bayesbits recipes`), or a TOML file.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write to; runs/RECIPE by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    model: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="Your network: a function that returns an nn.Module."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FACTORY",
            help="Your data: a function that returns loaders (train, test) or (train, validation, test), or a "
            "bayesbits.zoo.data.Data.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda:1; a GPU by default, if there is one.")
    ] = None,
) -> None:
    """Learn bits and channels of a network by a recipe, and test what came of it.

    Examples:

      bayesbits search digits-lenet5 --set search.mu=0.02

      bayesbits search cifar10-vgg7 --set data.folder=/data --out runs/vgg7

      bayesbits search --model mine:network --data mine:loaders --set search.epochs=20
    """
    if recipe is None and (model is None or data is None):
        raise typer.BadParameter("give a recipe, or both --model and --data", param_hint="RECIPE")
    loaded = load(recipe, overrides or (), model=model, data=data)
    folder = out or Path("runs") / loaded.name.replace(":", ".")
    show(run_with_way_on(loaded, folder, resume=resume, device=device), folder)
    report(folder)


def run_with_way_on(recipe: Recipe, folder: Path, *, resume: bool, device: str | None = None) -> Result:
    """Run a recipe; an error that leaves something to go on from says how."""
    try:
        return run(recipe, folder, resume=resume, device=device, say=say)
    except (TrainingError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):
            error.add_note("Nothing is lost but the work since the last checkpoint.")
        error.add_note(f"Go on with: bayesbits search {folder / 'recipe.toml'} --out {folder} --resume")
        raise


def show(result: Result, folder: Path) -> None:
    """Everything about a finished run, once for all processes."""
    if not is_first_process():
        return
    console = results()
    for table in (layer_table(result.layers), result_table(result), file_table(folder)):
        console.print(table)
        console.print()
    console.print(f"{result.seconds:.0f} s of training on {result.device}", highlight=False)
