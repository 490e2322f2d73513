"""Every command with its options and its help. A command imports its implementation when it runs, not before."""

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


def recipes() -> None:
    """List the recipes of the package."""
    from bayesbits.cli.show import show_recipes

    show_recipes()


def inspect(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A network of the zoo, your MODULE:FUNCTION, or a recipe.")
    ],
    input_shape: Annotated[
        str | None,
        typer.Option("--input-shape", metavar="CxHxW", help="The shape of one example, such as 3x224x224."),
    ] = None,
    overrides: options.Overrides = None,
    products: Annotated[
        bool, typer.Option("--products", help="Quantize products of two activations too, as those of attention.")
    ] = False,
) -> None:
    """Show the layers and costs of a network, its removable channels, what stays in float, and what is attached.

    `--set` gives options of the network, such as stem=cifar; those of a recipe are its settings, such as
    spec.bits=[4,8]. Your function may return a network, or a pair of the network and example inputs; then no shape is
    needed.
    """
    from bayesbits.cli.show import show_network

    show_network(model, input_shape, overrides or (), products)


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


def plan(folder: options.RunFolder) -> None:
    """Show the bits and channels of every layer of a run, and their cost."""
    from bayesbits.cli.show import show_plan

    show_plan(folder)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The folder of a run, or of several.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The page to write; by default DIR/report.html, or comparison.html.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure histograms and the error by layer again; this needs the data."),
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="FOLDER",
            help='Write the figures there, too: as SVG, and as PNG where pip install "bayesbits[figures]" was run.',
        ),
    ] = None,
) -> None:
    """Write DIR/report.html: one page about the run, without other files, to read or to send.

    Several folders are compared on one page: their front, the means over seeds, a table, and their plans side by side.
    A run that is not finished, or whose files are damaged, has a page that says so.

    Examples:

      bayesbits report runs/demo

      bayesbits report runs/mu0.01 runs/mu0.03 --out page.html
    """
    from bayesbits.cli.report import print_report

    print_report(folders, output, measure=measure, figures=figures)


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, also of one that is running.")],
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="The time between two views.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it one time, and end.")] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="FOLDER", help="Write everything there, too, for TensorBoard."),
    ] = None,
) -> None:
    """Watch a run in the terminal: losses, cost, metrics and bits, from the files that it writes.

    It ends when the run does; Ctrl-C ends it before, and does nothing to the run.
    """
    from bayesbits.cli.watch import run_watch

    run_watch(folder, seconds, once, tensorboard)


def explain(
    folder: options.RunFolder,
    tensor: Annotated[
        str | None, typer.Argument(metavar="TENSOR", help="Such as features.0.weight; without it all are listed.")
    ] = None,
) -> None:
    """Show the paper's decomposition of a tensor: its rounding to 2 bits, and the residuals that each width adds.

    Examples:

      bayesbits explain runs/demo

      bayesbits explain runs/demo features.0.weight
    """
    from bayesbits.cli.explain import run_explain

    run_explain(folder, tensor)


def posttrain(
    recipe: options.RecipeArgument = None,
    overrides: options.Overrides = None,
    checkpoint: options.CheckpointOption = None,
    model: options.ModelOption = None,
    data: options.DataOption = None,
    task: options.TaskOption = None,
    loss: options.PosttrainLossOption = None,
    metric: options.MetricOption = None,
    labels: options.LabelsOption = "given",
    learn: Annotated[options.Learn, typer.Option("--learn", help="The parameters that are learned.")] = "gates+ranges",
    num_examples: options.NumExamplesOption = 1024,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            min=1,
            help="Steps for each point. With too few no gate closes: its logit starts at 6, closes below -0.9, and a "
            f"step moves it by about {options.POSTTRAIN_GATE_LR:g}.",
        ),
    ] = options.POSTTRAIN_STEPS,
    mus: Annotated[
        str | None,
        typer.Option(
            "--mus",
            metavar="MU,MU,...",
            help="The weights of the penalty, in increasing order: one point for each. By default eight, "
            "chosen for the network and the loss.",
        ),
    ] = None,
    gates: Annotated[options.Gates, typer.Option("--gates", help="The kind of gates.")] = "hard_sigmoid",
    per_channel: options.PerChannelOption = True,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="LIMIT",
            help='The most that the final network may cost, such as "2% bops", "1.2 GBOPs", "500 kB" or "2.5 ms" (with '
            "--latency-table); a number alone is a percentage of the bit operations at 32 x 32 bits.",
        ),
    ] = None,
    latency_table: options.LatencyTableOption = None,
    planner: Annotated[
        options.Planner,
        typer.Option(
            "--planner",
            help="With --budget, the plan that becomes final. learned: that of the gates. solver: that of an integer "
            "program over gradients. best: the one of the two with the smaller loss on the examples; both are shown.",
        ),
    ] = "best",
    output: options.PosttrainOutput = None,
    device: options.DeviceOption = None,
) -> None:
    """Learn the bits of a trained network on a few examples, as a front of points; no weight changes.

    With --budget the gates of every point are projected onto it too, and a solver finds another plan within it, from
    gradients alone. The plan with the least loss on the examples becomes the final network in the folder, as after
    `bayesbits search`.

    Examples:

      bayesbits posttrain digits-lenet5 --budget "2% bops"

      bayesbits posttrain my.toml --checkpoint trained.pth --labels none
    """
    chosen = RecipeOptions(recipe, overrides, model, data, task, loss, metric)
    from bayesbits.cli.posttrain import run_posttrain

    run_posttrain(
        chosen, checkpoint, output, labels=labels, learn=learn, num_examples=num_examples, steps=steps, mus=mus,
        gates=gates, per_channel=per_channel, budget=budget, latency_table=latency_table, planner=planner,
        device=device,
    )  # fmt: skip


def sensitivity(
    recipe: options.RecipeArgument = None,
    overrides: options.Overrides = None,
    checkpoint: options.CheckpointOption = None,
    model: options.ModelOption = None,
    data: options.DataOption = None,
    task: options.TaskOption = None,
    loss: options.LossOption = None,
    metric: options.MetricOption = None,
    labels: options.LabelsOption = "given",
    bits: Annotated[
        str, typer.Option("--bits", metavar="BITS,BITS,...", help="The bit widths below 16 that are tried.")
    ] = "8,4,2",
    num_examples: options.NumExamplesOption = 1024,
    per_channel: options.PerChannelOption = True,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="LIMIT",
            help='The most that a plan may cost, such as "2% bops" or "500 kB": the best point within it is named; a '
            "number alone is a percentage of the bit operations.",
        ),
    ] = None,
    output: options.PosttrainOutput = None,
    device: options.DeviceOption = None,
) -> None:
    """Measure the sensitivity of every tensor of a trained network, and lower the bits in that order.

    A run that was stopped continues when it is started again.

    Examples:

      bayesbits sensitivity digits-lenet5 --bits 4,2
    """
    if not all(width.strip().isdigit() for width in bits.split(",")):
        raise typer.BadParameter(f"{bits!r} are no bit widths; write them as 8,4,2", param_hint="--bits")
    chosen = RecipeOptions(recipe, overrides, model, data, task, loss, metric)
    from bayesbits.cli.sensitivity import run_sensitivity

    run_sensitivity(
        chosen, checkpoint, output, labels=labels, bits=tuple(map(int, bits.split(","))), num_examples=num_examples,
        per_channel=per_channel, budget=budget, device=device,
    )  # fmt: skip


def export(folder: options.RunFolder) -> None:
    """Write the integer network of a run: DIR/deployed, DIR/fast.onnx, DIR/compact.onnx and DIR/qdq.onnx."""
    from bayesbits.cli.deploy import run_export

    run_export(folder)


def verify(
    folder: options.RunFolder,
    num_examples: Annotated[
        int, typer.Option("--num-examples", min=1, help="The number of test examples that are compared.")
    ] = 1000,
    runtime: Annotated[
        str, typer.Option("--runtime", help="What runs the files: onnxruntime, or openvino, which runs DIR/qdq.onnx.")
    ] = "onnxruntime",
) -> None:
    """Prove on test examples that the trained network, the integer network and both ONNX files agree.

    The command fails with the name of the first place that differs. The findings are in DIR/verification.json in both
    cases. With `--runtime openvino` differences are counted in steps, and the findings are in DIR/openvino.json.
    """
    from bayesbits.cli.deploy import run_verify

    run_verify(folder, num_examples, runtime)


def measure(
    network: Annotated[
        str | None,
        typer.Argument(metavar="NETWORK", help="A recipe of the package, a TOML file, or a network of the zoo."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write; a table that was begun there is continued.")
    ] = Path("latency_table.json"),
    overrides: options.Overrides = None,
    model: options.ModelOption = None,
    input_shape: Annotated[
        str | None,
        typer.Option("--input-shape", metavar="CxHxW", help="The shape of one example, such as 3x224x224."),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="How many threads a layer may use.")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often everything runs; the fastest counts.")] = 30,
) -> None:
    """Time the layers of a network in onnxruntime on this machine, for budgets such as "2.5 ms".

    `--set` changes a recipe as in `bayesbits search`. For a network of the zoo, or your own, it gives options of the
    network, and spec.KEY=VALUE what it will be compressed with. Only what the spec allows is measured.

    Examples:

      bayesbits measure digits-lenet5 --output table.json

      bayesbits measure resnet18 --set spec.preset=onnxruntime -o table.json

      bayesbits measure --model mine:network --input-shape 3x32x32 -o table.json
    """
    from bayesbits.cli.measure import run_measure

    run_measure(network, output, overrides or (), model=model, input_shape=input_shape, threads=threads, rounds=rounds)


def bench(
    folder: options.RunFolder,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How many times every file runs.")] = 20,
) -> None:
    """Measure time and size of the float network and of the ONNX files of a run.

    OpenVINO is measured beside onnxruntime, with its own file, where it is installed.
    """
    from bayesbits.cli.deploy import run_bench

    run_bench(folder, rounds)
