"""Runs `bayesbits search` and `bayesbits demo`: a recipe from its data to its result."""

import tomllib
from pathlib import Path

from bayesbits.cli.console import output_console, print_line, print_status
from bayesbits.cli.deploy import run_verify, with_measured_latency
from bayesbits.cli.options import RecipeOptions
from bayesbits.cli.tables import file_table, layer_table, result_table
from bayesbits.recipes import Recipe, Result, load, run
from bayesbits.recipes.process import is_first_process
from bayesbits.recipes.run_folder import RECIPE, REPORT, clear, resume_command
from bayesbits.report import write_report
from bayesbits.training import CheckpointError, TrainingError
from bayesbits.utils.optional_packages import require_extras

DEMO_RECIPE = "digits-lenet5"
DEMO_EXAMPLES = 359  # the whole test set


def run_search(
    options: RecipeOptions, output: Path | None, *, resume: bool, device: str | None, budget: str | None = None,
    latency_table: Path | None = None,
) -> None:  # fmt: skip
    """Search, show the result and write the report."""
    recipe = load_recipe(options, budget, latency_table)
    folder = output or _folder_to_resume(options.recipe, resume) or Path("runs") / folder_name(recipe)
    result = run_recipe(recipe, folder, resume=resume, device=device)
    show_result(result)
    finish(with_measured_latency(result, folder), folder)


def run_demo(folder: Path) -> None:
    """Run the recipe of the demo, verify the integer network, and write the report."""
    require_extras("bayesbits demo", "onnx", "data")
    recipe = load(DEMO_RECIPE)
    finished = (folder / REPORT).exists() and (folder / RECIPE).exists()
    if finished and _description(folder / RECIPE) == recipe.description:  # a run of another recipe is not removed
        clear(folder)
    print_status(f"{recipe.description}. Training on scikit-learn's digits, on this machine.")
    result = run_recipe(recipe, folder, resume=True)
    show_result(result)
    try:
        run_verify(folder, DEMO_EXAMPLES)
    finally:  # the page tells of a failed verification, too
        finish(result, folder)


def _description(path: Path) -> object:
    """The description in a recipe, which a recipe of another version has too."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).get("description")
    except ValueError:
        return None


def load_recipe(options: RecipeOptions, budget: str | None = None, latency_table: Path | None = None) -> Recipe:
    """The recipe with the changes that the options make."""
    overrides = [*([] if options.method is None else [f"spec.method={options.method}"]), *(options.overrides or ())]
    return load(
        options.recipe, overrides, model=options.model, data=options.data, task=options.task,
        loss=options.loss, metric=options.metric, budget=budget, latency_table=latency_table,
    )  # fmt: skip


def folder_name(recipe: Recipe) -> str:
    """The default name of a recipe's folder."""
    return recipe.name.replace(":", ".")


def _folder_to_resume(recipe: str | None, resume: bool) -> Path | None:
    """The folder of the run to continue, where the recipe is the recipe.toml in it."""
    path = Path(recipe or "")
    return path.parent if resume and path.name == RECIPE and path.is_file() else None


def run_recipe(recipe: Recipe, folder: Path, *, resume: bool, device: str | None = None) -> Result:
    """Run a recipe; an error after which the run can continue gets the command as a note."""
    try:
        return run(recipe, folder, resume=resume, device=device, say=print_status)
    except (TrainingError, KeyboardInterrupt) as error:
        if (folder / RECIPE).is_file() and _can_resume(error):
            if isinstance(error, KeyboardInterrupt):
                error.add_note("Only the work since the last checkpoint is lost.")
            error.add_note(f"Go on with: {resume_command(folder)}")
        raise


def _can_resume(error: BaseException) -> bool:
    """Whether the run can continue: a checkpoint that is damaged or of another training stays so."""
    return not isinstance(error, CheckpointError) or isinstance(error.__cause__, OSError)


def show_result(result: Result) -> None:
    """Show the layers, metrics and costs of a finished run; only the first of several processes does."""
    if not is_first_process():
        return
    console = output_console()
    for table in (layer_table(result.layers, console), result_table(result)):
        console.print(table)
        console.print()
    print_line(f"{result.seconds:.0f} s of training on {result.device}")
    for stage, execution in result.executions.items():
        print_line(f"{stage}: {execution}")
    console.print()


def finish(result: Result, folder: Path) -> None:
    """Write the report, list the files of the run, and print the verdict, with advice where there is some."""
    if not is_first_process():
        return
    page = write_report(folder)
    output_console().print(file_table(folder))
    for text in (result.verdict, result.advice):
        if text:
            print_line(f"\n{text}")
    print_line(f"\nreport: {page}")
