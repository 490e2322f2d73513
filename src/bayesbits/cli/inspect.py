"""`bayesbits inspect`: what a network is and costs, before any training."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import nn

from bayesbits.cli.console import results
from bayesbits.cli.options import Overrides
from bayesbits.cli.tables import fitted
from bayesbits.cost import CostModel
from bayesbits.graph.trace import trace
from bayesbits.recipes.evaluation import explained
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.toml import options_from
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from bayesbits.report.numbers import size
from bayesbits.training.step import call
from bayesbits.zoo import models


def inspect(
    model: Annotated[str, typer.Argument(help="A network of the zoo, or package.module:factory.")],
    input_shape: Annotated[
        str | None, typer.Option(metavar="CxHxW", help="The shape of one example, such as 3x224x224.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Show what a network is and costs: its layers, the channels that can be removed, and what is not handled.

    `--set` gives options of the network, such as stem=cifar. A factory may return a pair of the network and example
    inputs; then no shape is needed.
    """
    network, example = build_model(model, options_from(overrides or ()))
    if input_shape is not None or example is None:
        example = torch.zeros(_shape(model, input_shape))
    _check_runs(model, network.eval(), example)
    topology = trace(network, example)
    console = results()
    console.print(fitted(console, [layer.name for layer in topology.layers], lambda names: _layers(topology, names)))
    for line in (*_kept(topology), *_unsupported(topology)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(_costs(topology))


def _check_runs(model: str, network: nn.Module, example: Any) -> None:
    """Raise, in the words of whatever part of the network fails, unless it takes the example."""
    shape = f" of shape {'x'.join(map(str, example.shape[1:]))}" if isinstance(example, torch.Tensor) else ""
    made_for = f"; {model} was made for {'x'.join(map(str, models.input_shape(model)))}" if ":" not in model else ""
    with explained(f"an example{shape}", made_for), torch.no_grad():
        call(network, example)


def _shape(model: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        if ":" in model:
            raise typer.BadParameter("a network of your own needs it, such as 3x224x224", param_hint="--input-shape")
        return (1, *models.input_shape(model))
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise typer.BadParameter(
            f"{text!r} is not a shape; write 3x224x224, without the batch", param_hint="--input-shape"
        )
    return (1, *map(int, text.split("x")))


def _layers(topology: Topology, names: Sequence[str]) -> Table:
    table = Table("layer", "kind", "weight", title=f"{len(topology.layers)} layers", title_justify="left")
    for heading in ("MACs", "share of MACs", "removable channels"):
        table.add_column(heading, justify="right")
    for name, layer in zip(names, topology.layers, strict=True):
        removable = sum(topology.group_of(channel).removable for channel in layer.out_channels)
        table.add_row(
            name,
            "depthwise conv" if layer.depthwise else layer.kind,
            " x ".join(map(str, layer.weight_shape)),
            f"{layer.macs:,}",
            f"{100 * layer.macs / topology.macs:.1f}%",
            f"{removable} of {len(layer.out_channels)}",
        )
    return table


def _kept(topology: Topology) -> list[str]:
    return [
        f"{group.name}: all {group.size} channels stay: {group.reason}"
        for group in topology.groups
        if group.reason is not None and group.producers
    ]


def _unsupported(topology: Topology) -> list[str]:
    lines = [] if topology.traced else ["torch.export could not read this network; its layers were found by a run"]
    return lines + [f"{entry.name} ({entry.what}) stays in float: {entry.reason}" for entry in topology.unsupported]


def _costs(topology: Topology) -> Table:
    table = Table("bits of weights/activations", title="What it costs", title_justify="left")
    for heading in ("BOPs", "relative BOPs", "weights"):
        table.add_column(heading, justify="right")
    model = CostModel(topology)
    for weights, activations in ((32, 32), (8, 8), (4, 8), (4, 4), (2, 2)):
        uniform: Any = Plan.uniform(topology, weights, activations, input_bits=min(32, max(8, activations)))
        cost = model.count(uniform)
        table.add_row(
            f"{weights}/{activations}", f"{cost.bops:,}", f"{cost.relative_bops:.4g}%", size(cost.weight_bytes)
        )
    return table
