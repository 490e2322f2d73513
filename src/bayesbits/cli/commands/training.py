"""The commands that train networks with their bits and channels: `demo`, `search` and `sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from bayesbits.cli import options
from bayesbits.cli.options import RecipeOptions


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("runs/demo"),
) -> None:
    """Compress LeNet-5 on scikit-learn's handwritten digits: two minutes on a CPU, no download.

    The float network is trained, bits and channels are learned, and the result is fine-tuned and tested. The integer
    network is written as ONNX files and proven equal. A demo that was interrupted continues; one that was finished
    starts again.
    """
    from bayesbits.cli.search import run_demo

    run_demo(output)


def search(
    recipe: options.RecipeArgument = None,
    overrides: options.Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write to; runs/RECIPE by default.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in the folder; DIR/recipe.toml as the recipe names the folder, too."
        ),
    ] = False,
    model: options.ModelOption = None,
    data: options.DataOption = None,
    task: options.TaskOption = None,
    loss: options.LossOption = None,
    metric: options.MetricOption = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="LIMIT",
            help='The most that the final network may cost, such as "0.5% bops", "1.2 GBOPs", "500 kB" or "2.5 ms" '
            "(with --latency-table); several with commas between them. It replaces search.mu and search.gates of the "
            "recipe.",
        ),
    ] = None,
    latency_table: options.LatencyTableOption = None,
    method: options.MethodOption = None,
    device: options.DeviceOption = None,
) -> None:
    """Learn the bits and channels of a network as a recipe says, and test the result.

    Examples:

      bayesbits search digits-lenet5 --budget "0.5% bops"

      bayesbits search digits-lenet5 --set search.mu=0.02

      bayesbits search digits-lenet5 --method lsq --set spec.weight_bits=4 --set spec.activation_bits=4

      bayesbits search cifar10-vgg7 --set data.folder=/data -o runs/vgg7

      bayesbits search --model mine:network --data mine:loaders

      bayesbits search --model mine:unet --data mine:loaders --task segmentation

      bayesbits search runs/vgg7/recipe.toml --resume
    """
    chosen = RecipeOptions(recipe, overrides, model, data, task, loss, metric, method)
    from bayesbits.cli.search import run_search

    run_search(chosen, output, resume=resume, device=device, budget=budget, latency_table=latency_table)


def sweep(
    recipes: options.RecipeArguments = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE,...",
            help="Change a setting; with several values, one run for each, and one for each combination of several "
            "options. Commas in brackets, braces and quotes do not separate values: spec.bits=[2,4,8],[4,8] has two.",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", metavar="NAME,...", help="Short for --set spec.method=NAME,...")
    ] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", metavar="N,...", help="Short for --set seed=N,...")] = None,
    budgets: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="LIMIT",
            help='The most that the final network may cost, as in `bayesbits search`, such as "0.5% bops"; given '
            "several times, one run for each.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("runs/sweep"),
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="How many runs at a time, each with its share of cores and GPUs; 1 by default, and with --ray one for "
            "each GPU or core of the cluster.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Run on a Ray cluster: its address, auto for the one of this machine, or local for a new one.",
        ),
    ] = None,
    model: options.ModelOption = None,
    data: options.DataOption = None,
    task: options.TaskOption = None,
    loss: options.LossOption = None,
    metric: options.MetricOption = None,
    latency_table: options.LatencyTableOption = None,
    device: options.DeviceOption = None,
) -> None:
    """Run recipes with every combination of settings, several at a time, and compare the results.

    A run of a sweep is a `bayesbits search` in a folder of its own. The same command again skips what is done and
    goes on with what was interrupted or failed. DIR/sweep.json has the mean and the standard error over seeds,
    DIR/sweep.html is a page about all runs. A recipe may also be a TOML file that lists runs, in tables named "runs".

    Examples:

      bayesbits sweep digits-lenet5 --set search.mu=0.01,0.1 --seeds 0,1,2 -o runs/mus

      bayesbits sweep cifar10-vgg7 mnist-lenet5 --set data.folder=/data --jobs 2

      bayesbits sweep digits-lenet5 --budget "0.5% bops" --budget "1% bops"

      bayesbits sweep my_runs.toml -o runs/mine
    """
    if not recipes and (model is None or data is None):
        raise typer.BadParameter("give a recipe, or both --model and --data", param_hint="RECIPE")
    from bayesbits.cli.sweep import SweepOptions, run_sweep

    run_sweep(
        SweepOptions(
            tuple(recipes or ()), output, tuple(overrides or ()), methods, seeds, tuple(budgets or ()), latency_table,
            model=model, data=data, task=task, loss=loss, metric=metric, jobs=jobs, ray=ray, device=device,
        )
    )  # fmt: skip
