"""The commands that choose the bits of a trained network, without training it: `posttrain` and `sensitivity`."""

from typing import Annotated

import typer

from bayesbits.cli import options
from bayesbits.cli.options import RecipeOptions


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

      bayesbits posttrain my.toml --set spec.preset=onnxruntime --set spec.activations=dynamic

      bayesbits posttrain my.toml --set spec.activations=float --set spec.group_size=32
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
