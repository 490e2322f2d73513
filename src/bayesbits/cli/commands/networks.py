"""The commands about networks and recipes that have not run: `recipes`, `inspect` and `measure`."""

from pathlib import Path
from typing import Annotated

import typer

from bayesbits.cli import options


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
