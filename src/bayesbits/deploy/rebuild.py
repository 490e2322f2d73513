"""The graph of a deployed network, made anew from the code of a float network and the record."""

from __future__ import annotations

import torch
from torch import fx, nn

from bayesbits.deploy.fold import fold
from bayesbits.deploy.fuse import fuse
from bayesbits.deploy.place import place
from bayesbits.deploy.program import export_float
from bayesbits.deploy.prune import prune
from bayesbits.deploy.silent import drop_silent
from bayesbits.integer import Structure


def rebuild(model: nn.Module, structure: Structure) -> fx.Graph:
    """Rewrite the graph of a float network as `deploy` did; its weights are not looked at."""
    examples = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype))
        for name, shape, dtype in zip(structure.inputs, structure.input_shapes, structure.input_types, strict=True)
    }
    program = export_float(model, (), examples)
    present = {layer.name: layer for layer in structure.layers}
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
