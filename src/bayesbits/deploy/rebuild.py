"""The graph of a deployed network, made anew from the code of a float network and the record."""

from __future__ import annotations

import copy

import torch
from torch import fx, nn

from bayesbits.deploy.rewrite.fold_batch_norm import fold
from bayesbits.deploy.rewrite.fuse_quantizers import fuse
from bayesbits.deploy.rewrite.insert_quantizers import place
from bayesbits.deploy.rewrite.integer_layers import cut_weight
from bayesbits.deploy.rewrite.program import export_float
from bayesbits.deploy.rewrite.remove_channels import prune
from bayesbits.deploy.rewrite.remove_dead_branches import drop_silent
from bayesbits.deploy.signature import example_call
from bayesbits.records.integer_network import Structure
from bayesbits.records.topology import Topology


def rebuild(model: nn.Module, structure: Structure) -> fx.Graph:
    """Rewrite the graph of a float network as `deploy` did; of its weights only the shapes are looked at."""
    args, kwargs = example_call(structure, by_position=False)
    program = export_float(copy.deepcopy(model).cpu().float().eval(), args, kwargs)
    present = {layer.name: layer for layer in structure.layers}
    _check_layers(program.reading.topology, structure)
    layers = fold(program)
    prune(program, layers, frozenset(structure.removed))
    gone = {entry.layer.name for entry in layers if entry.layer.name not in present}
    silent = gone | {name for name, layer in present.items() if layer.bits == 0}
    layers = drop_silent(program, layers, silent)
    grids = {grid.name: grid for grid in structure.grids}
    integer = [name for name, layer in present.items() if layer.arithmetic == "integer"]
    place(program, layers, grids, integer)
    fuse(program.graph, layers, grids, integer)
    return program.graph


def _check_layers(topology: Topology, structure: Structure) -> None:
    """Raise where a network has other layers than those that were stored."""
    traced = {layer.name: layer for layer in topology.layers}
    for stored in structure.layers:
        if stored.name not in traced:
            raise ValueError(f"this is not the network that was stored: it has no layer {stored.name!r}")
        layer = traced[stored.name]
        whole = torch.empty(layer.weight_shape)
        shape = tuple(cut_weight(layer, whole, frozenset(structure.removed)).shape)
        if shape != stored.weight_shape:
            raise ValueError(
                f"this is not the network that was stored: without its removed channels the weight of {stored.name!r} "
                f"has shape {shape}, and {stored.weight_shape} is stored"
            )
