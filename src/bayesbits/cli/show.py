"""Runs the commands that show something: `bayesbits recipes`, `inspect` and `plan`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typer
from rich.table import Table
from torch import nn

from bayesbits import recipes
from bayesbits.cli.attached import attached_table
from bayesbits.cli.console import output_console, print_line
from bayesbits.cli.tables import fit_table, layer_table, result_table
from bayesbits.compression.spec import Spec
from bayesbits.cost import CostModel
from bayesbits.graph.trace import trace
from bayesbits.recipes import Result
from bayesbits.recipes.evaluation import explained
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.result import layer_rows
from bayesbits.recipes.run_folder import PLAN, RESULT, TOPOLOGY, unfinished
from bayesbits.recipes.toml import options_from
from bayesbits.records.plan import Plan
from bayesbits.records.topology import EMBEDDING, RECURRENT, Layer, Topology
from bayesbits.report.formatting import format_bytes, format_count
from bayesbits.report.layer_table import parts
from bayesbits.utils.batches import call_model
from bayesbits.zoo import models


def show_recipes() -> None:
    """A table of the recipes of the package."""
    table = Table("recipe", "description", "mu", "epochs", "settings from")
    for name in recipes.names():
        recipe = recipes.load(name)
        stages = (recipe.float_training, recipe.search, recipe.finetune)
        epochs = " + ".join(str(stage.epochs) for stage in stages if stage is not None)
        table.add_row(name, recipe.description, f"{recipe.search.mu or 0:g}", epochs, recipe.source)
    console = output_console()
    console.print(table)
    console.print("Run one with: bayesbits search RECIPE. Epochs are those of float training + search + fine-tuning.")


def show_plan(folder: Path) -> None:
    """The bits and channels of every layer of a run, their cost, and the result."""
    for name in (PLAN, TOPOLOGY):
        if not (folder / name).is_file():
            raise FileNotFoundError(unfinished(folder, name))
    topology, plan = Topology.load(folder / TOPOLOGY), Plan.load(folder / PLAN)
    plan.check(topology)
    cost = CostModel(topology).count(plan)
    console = output_console()
    console.print(layer_table(layer_rows(cost, topology), console))
    console.print(
        f"{cost.macs:,} MACs, {cost.bops:,} BOPs: {cost.relative_bops:.3g}% of 32 x 32 bits "
        f"({cost.paper_relative_bops:.3g}% in the paper's convention); {format_bytes(cost.weight_bytes)} of weights",
        highlight=False,
    )
    if (folder / RESULT).is_file():
        console.print()
        console.print(result_table(Result.load(folder / RESULT)))


def show_network(model: str, input_shape: str | None, overrides: Sequence[str], products: bool = False) -> None:
    """Layers of a network, channels that cannot be removed, what stays in float, what is attached, and costs.

    `model` may be a recipe: then its network and its spec are shown, and `overrides` change it.
    """
    spec, options = Spec(activation_products=products), None
    if model in recipes.names() or model.endswith(".toml"):
        recipe = recipes.load(model, overrides)
        spec = replace(recipe.spec, activation_products=recipe.spec.activation_products or products)
        model, options = recipe.model.name, recipe.model.options
    network, example = build_model(model, options_from(overrides) if options is None else options)
    if input_shape is not None or example is None:
        example = torch.zeros(example_shape(model, input_shape))
    check_runs(model, network.eval(), example)
    topology = trace(network, example, activation_products=spec.activation_products)
    console = output_console()
    names = [row[0] for row in _rows(topology)]
    console.print(fit_table(console, names, lambda n: _wide(topology, n), lambda n: _narrow(topology, n)))
    for line in (*_fixed_channels(topology), *_unsupported(topology)):
        print_line(line)
    console.print(attached_table(topology, spec))
    console.print(_costs(topology))


def check_runs(model: str, network: nn.Module, example: Any) -> None:
    """Raise an error that names the failing part of the network, unless it accepts the example."""
    shape = f" of shape {'x'.join(map(str, example.shape[1:]))}" if isinstance(example, torch.Tensor) else ""
    expected = f"; {model} was made for {'x'.join(map(str, models.input_shape(model)))}" if ":" not in model else ""
    with explained(f"an example{shape}", expected), torch.no_grad():
        call_model(network, example)


def example_shape(model: str, text: str | None) -> tuple[int, ...]:
    """The shape of a batch of one example."""
    if text is None:
        if ":" in model:
            raise typer.BadParameter("your own network needs it, such as 3x224x224", param_hint="--input-shape")
        return (1, *models.input_shape(model))
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise typer.BadParameter(
            f"{text!r} is not a shape; write 3x224x224, without the batch", param_hint="--input-shape"
        )
    return (1, *map(int, text.split("x")))


def _rows(topology: Topology) -> list[tuple[str, str, tuple[int, ...], int, str]]:
    """Name, kind, shape of the weight, MACs and removable channels of every layer; products and tables follow."""
    rows = [
        (layer.name, layer.kind, layer.weight_shape, layer.macs, _removable(topology, layer))
        for layer in topology.layers
    ]
    rows += [(product.name, "product", (), product.macs, "") for product in topology.products]
    kinds = {EMBEDDING: "table", RECURRENT: "recurrent"}
    return rows + [(one.name, kinds[one.kind], (one.rows, one.columns), one.macs, "") for one in topology.tables]


def _wide(topology: Topology, names: Sequence[str]) -> Table:
    table = _layer_table(topology, ("MACs", "share of MACs", "removable channels"))
    depthwise = {layer.name for layer in topology.layers if layer.depthwise}
    for shown, (name, kind, shape, macs, removable) in zip(names, _rows(topology), strict=True):
        kind = "depthwise conv" if name in depthwise else kind
        share = f"{100 * macs / topology.macs:.1f}%"
        table.add_row(shown, kind, " x ".join(map(str, shape)), f"{macs:,}", share, removable)
    return table


def _narrow(topology: Topology, names: Sequence[str]) -> Table:
    """The same with fewer characters, for terminals of 80 columns."""
    table = _layer_table(topology, ("MACs", "share", "removable"))
    depthwise = {layer.name for layer in topology.layers if layer.depthwise}
    for shown, (name, kind, shape, macs, removable) in zip(names, _rows(topology), strict=True):
        kind = "depthwise" if name in depthwise else kind
        share = f"{100 * macs / topology.macs:.1f}%"
        table.add_row(shown, kind, "x".join(map(str, shape)), format_count(macs), share, removable.replace(" of ", "/"))
    return table


def _layer_table(topology: Topology, numbers: Sequence[str]) -> Table:
    numbers_of_parts = len(topology.layers), len(topology.products), len(topology.tables)
    table = Table(title=parts(*numbers_of_parts), title_justify="left")
    table.add_column("layer", overflow="fold")
    for heading in ("kind", "weight"):
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _removable(topology: Topology, layer: Layer) -> str:
    removable = sum(topology.group_of(channel).removable for channel in layer.out_channels)
    return f"{removable} of {len(layer.out_channels)}"


def _fixed_channels(topology: Topology) -> list[str]:
    return [
        f"{group.name}: all {group.size} channels stay: {group.reason}"
        for group in topology.groups
        if group.reason is not None and group.producers
    ]


def _unsupported(topology: Topology) -> list[str]:
    lines = [] if topology.traced else ["torch.export could not read this network; its layers were found by a run"]
    return lines + [f"{entry.name} ({entry.what}) stays in float: {entry.reason}" for entry in topology.unsupported]


def _costs(topology: Topology) -> Table:
    """The cost of the network with all tensors at the same bit widths."""
    table = Table("weight/activation bits", title="Costs", title_justify="left")
    for heading in ("BOPs", "relative BOPs", "weights"):
        table.add_column(heading, justify="right")
    model = CostModel(topology)
    for weights, activations in ((32, 32), (8, 8), (4, 8), (4, 4), (2, 2)):
        uniform: Any = Plan.uniform(topology, weights, activations, input_bits=min(32, max(8, activations)))
        cost = model.count(uniform)
        row = f"{cost.bops:,}", f"{cost.relative_bops:.4g}%", format_bytes(cost.weight_bytes)
        table.add_row(f"{weights}/{activations}", *row)
    return table
