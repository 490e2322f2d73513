"""Runs `bayesbits measure`: the latency table of a network on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import typer
from torch import nn

from bayesbits.cli.console import print_line, print_status
from bayesbits.cli.show import check_runs, example_shape
from bayesbits.compression.spec import Spec
from bayesbits.deploy import measure
from bayesbits.recipes import load, names
from bayesbits.recipes.data import open_data
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.process import current_process
from bayesbits.recipes.toml import options_from, read_spec
from bayesbits.records.latency_table import LatencyTable


def run_measure(
    network: str | None,
    output: Path,
    overrides: Sequence[str],
    *,
    model: str | None,
    input_shape: str | None,
    threads: int,
    rounds: int,
) -> None:
    """Measure a network, and say what the table holds."""
    if (network is None) == (model is None):
        raise typer.BadParameter("give a recipe or a network of the zoo, or --model", param_hint="NETWORK")
    if network is not None and (network in names() or network.endswith(".toml")):
        module, example, spec = _of_recipe(network, overrides)
    else:
        module, example, spec = _of_model(network or str(model), input_shape, overrides)
    print_status(f"measuring into {output}; a measurement that is stopped goes on when it is started again")
    table = measure(module, example, spec, path=output, threads=threads, rounds=rounds, progress=True)
    for line in _summary(table):
        print_line(line)
    print_line(f'latency table: {output}; use it by --budget "... ms" --latency-table {output}')


def _of_recipe(recipe: str, overrides: Sequence[str]) -> tuple[nn.Module, Any, Spec]:
    """The network of a recipe, an example of its data, and its spec."""
    loaded = load(recipe, overrides)
    loaders = open_data(loaded.data, current_process("cpu"), loaded.seed, labeled=False)
    module = build_model(loaded.model.name, loaded.model.options, loaders.classes)[0]
    return module.eval(), loaders.example, loaded.spec


def _of_model(name: str, input_shape: str | None, overrides: Sequence[str]) -> tuple[nn.Module, Any, Spec]:
    """A network of the zoo or of the user's, an example, and the spec of the overrides that begin with spec."""
    options = options_from(overrides)
    spec = read_spec(options.pop("spec", {}))
    module, example = build_model(name, options)
    if input_shape is not None or example is None:
        example = torch.zeros(example_shape(name, input_shape))
    check_runs(name, module.eval(), example)
    return module, example, spec


def _summary(table: LatencyTable) -> list[str]:
    lines = [f"{len(table.layers)} layers, {len(table.rows)} rows on {table.machine}"]
    for one in table.overheads:
        lines.append(
            f"activations of {one.bits} bits, {one.share:.0%} of the channels: {one.network_ms:.4g} ms, of these "
            f"{one.ms:.3g} ms outside of the layers"
        )
    return lines
