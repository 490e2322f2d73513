"""What deployment reads: a float network, and everything that was decided about it.

`read_decision` reads it from a compressor. The compressor is not changed: its network is copied, the plan is made final
in the copy, everything is read from there, and the copy is detached to the float network that is exported.
`stored_decision` reads it from a stored network, together with the float network's code.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from bayesbits.compression.compressor import Compressor
from bayesbits.compression.final_form import make_final
from bayesbits.deploy.layer_weights import (
    LayerWeights,
    keep_zeros,
    read_weights,
    remove_weight_channels,
    select_channels,
    stored_weights,
)
from bayesbits.deploy.signature import example_call
from bayesbits.deploy.table_weights import TableWeights, read_tables, stored_table
from bayesbits.graph.size_trials import Place
from bayesbits.graph.symbolic_sizes import Marks
from bayesbits.nn import Quantizer
from bayesbits.records.integer_network import Grid, IntegerNetwork
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer, Topology
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.torch_private import tree_map_only


@dataclass(frozen=True)
class Decision:
    """A float network, and what was decided about it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attached_layers: tuple[Layer, ...] | None
    """The layers as they were when quantizers were attached; None for a stored network, which does not hold them."""
    removed: frozenset[int]
    """The channel classes that are removed."""
    weights: Mapping[str, LayerWeights]
    """By the layer's name, without the removed channels; a stored network has none for layers of dead branches."""
    grids: Mapping[str, Grid]
    """By the tensor's name; tensors without a quantizer have none, nor have those that are quantized at run time."""
    tables: Mapping[str, TableWeights] = field(default_factory=dict)
    """By the table's name; tables without a quantizer have none, and stay in float."""
    activation_products: bool = False
    """Whether products of two activations have quantized operands."""
    dynamic: frozenset[str] = frozenset()
    """The layers whose input is quantized at run time, by its own range."""
    marks: Marks | None = None
    """The sizes of inputs that are dynamic; None: all that the network lets change, which are found by trying."""
    image_sizes: bool = False
    """Whether sizes of images are among those that are tried."""
    fixed: Mapping[Place, str] = field(default_factory=dict)
    """Sizes that could not stay dynamic, and why."""

    def is_zero(self, layer: str) -> bool:
        """Whether a layer emits zeros alone: its weight has no bits."""
        return layer not in self.weights or self.weights[layer].bits == 0

    def check_layers(self, topology: Topology) -> None:
        """Raise where the exported network has other layers than those that the decision is about."""
        if self.attached_layers is not None and topology.layers != self.attached_layers:
            raise ValueError(
                "the network is not the one that was attached to: detach, attach again, and go on from there"
            )
        found = {layer.name: layer for layer in topology.layers}
        for name, weights in self.weights.items():
            if name not in found:
                raise ValueError(f"this is not the network that was stored: it has no layer {name!r}")
            layer = found[name]
            shape = tuple(select_channels(torch.empty(layer.weight_shape), layer, self.removed).shape)
            if shape != weights.shape:
                raise ValueError(
                    f"this is not the network that was stored: without its removed channels the weight of {name!r} "
                    f"has shape {shape}, and {weights.shape} is stored"
                )
        shapes = {table.name: (table.rows, table.columns) for table in topology.tables}
        for name, table in self.tables.items():
            if shapes.get(name) != table.shape:
                raise ValueError(
                    f"this is not the network that was stored: its table {name!r} has shape {shapes.get(name)}, and "
                    f"{table.shape} is stored"
                )


def read_decision(compressor: Compressor, channel_multiple: int = 1) -> Decision:
    """The decision of a compressor whose bits and channels are final."""
    if not compressor.attachment.calibrated:
        raise ValueError("the ranges of the activations are not known yet: call compressor.calibrate(batches) first")
    if compressor.attachment.example_inputs is None:
        raise ValueError("this network was attached by an earlier version that kept no example inputs: attach it again")
    _check_precision(compressor.model)
    _check_fixed(compressor)
    plan = compressor.plan()
    fixed = Compressor(copy.deepcopy(compressor.model).cpu().float().eval())
    fixed.fix(plan)
    make_final(fixed.model, fixed.attachment)
    topology = fixed.topology
    if not topology.traced:
        raise ValueError(
            f"{type(compressor.model).__name__} cannot be deployed, since deployment needs its graph: "
            f"{topology.unsupported[0].reason}. To fix this: rewrite that part (mostly branches on data), or deploy a "
            "part that exports"
        )
    args, kwargs = fixed.attachment.example_inputs or ((), {})
    args, kwargs = tree_map_only(Tensor, _float_on_cpu, (args, kwargs))
    zero = plan.removed(topology)
    removed = zero - _channels_for_multiple(topology, zero, channel_multiple)
    weights = {}
    with torch.no_grad(), evaluation_mode(fixed.model):
        for layer in topology.layers:
            emitted = _emitted_channels(layer, plan, zero)
            weights[layer.name] = remove_weight_channels(read_weights(fixed, layer, emitted), layer, removed)
            if layer.instance_norm is not None:
                keep_zeros(fixed.model.get_submodule(layer.instance_norm), emitted)
        quantized = {
            name: quantizer
            for name, quantizer in fixed.attachment.quantizers.items()
            if quantizer.mode != "off" and name not in topology.parameter_tensors
        }
        tables = read_tables(fixed)
    grids = {name: _grid(name, quantizer) for name, quantizer in quantized.items() if not quantizer.dynamic}
    own_range = {name for name, quantizer in quantized.items() if quantizer.dynamic}
    dynamic = frozenset(layer.name for layer in topology.layers if layer.activation in own_range)
    multiplied = bool(topology.products)
    return Decision(fixed.detach(), args, kwargs, topology.layers, removed, weights, grids, tables, multiplied, dynamic)


def stored_decision(model: nn.Module, network: IntegerNetwork) -> Decision:
    """The decision of a stored network, for a float network built by the code that was trained.

    Only the code of `model` and the shapes of its weights are used; their values are not.
    """
    structure = network.structure
    args, kwargs = example_call(structure, by_position=False)
    return Decision(
        model=copy.deepcopy(model).cpu().float().eval(),
        args=args,
        kwargs=kwargs,
        attached_layers=None,
        removed=frozenset(structure.removed),
        weights={layer.name: stored_weights(network, layer) for layer in structure.layers},
        grids={grid.name: grid for grid in structure.grids},
        tables={table.name: stored_table(network, table) for table in structure.tables},
        dynamic=frozenset(layer.name for layer in structure.layers if layer.dynamic),
        activation_products=bool(structure.products),
        marks=dict.fromkeys(sorted(structure.dynamic_places), Dim.AUTO),
    )


def _check_precision(model: nn.Module) -> None:
    """Raise where the network computes in less than single precision, which the deployed one would not do."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < torch.finfo(torch.float32).bits:
            raise ValueError(
                f"{name} is in {str(tensor.dtype).removeprefix('torch.')}, and a deployed network computes in float32: "
                "its codes would be others. To fix this: model.float(), look at its accuracy once more, and deploy that"
            )


def _check_fixed(compressor: Compressor) -> None:
    """Raise where bits or channels are still being learned: biases and channels are final only after `fix`."""
    attachment = compressor.attachment
    learning = [name for name, quantizer in attachment.quantizers.items() if quantizer.mode == "learning"]
    learning += [f"the channels of {name}" for name, gate in attachment.channel_gates.items() if not gate.fixed]
    if learning:
        raise ValueError(
            f"bits or channels are not final yet ({learning[0]}, for one), and what the network computes now is not "
            "what would be deployed. To fix this: compressor.fix(), or compressor.fix(plan), and deploy that"
        )


def _float_on_cpu(tensor: Tensor) -> Tensor:
    tensor = tensor.cpu()
    return tensor.float() if tensor.is_floating_point() else tensor


def _grid(name: str, quantizer: Quantizer) -> Grid:
    low, high = quantizer.code_bounds()
    alpha = None if quantizer.alpha is None else quantizer.alpha.item()
    step, beta = quantizer.step().item(), quantizer.beta.item()
    return Grid(name, quantizer.effective_bits(), quantizer.signed, step, low, high, beta, alpha)


def _emitted_channels(layer: Layer, plan: Plan, zero: frozenset[int]) -> Tensor:
    """A mask over a layer's output channels: False where the plan drops the channel or its whole class is zero."""
    kept = set(plan.kept.get(layer.name, range(len(layer.out_channels))))
    return torch.tensor([i in kept and channel not in zero for i, channel in enumerate(layer.out_channels)])


def _channels_for_multiple(topology: Topology, zero: frozenset[int], multiple: int) -> frozenset[int]:
    """Channel classes that are zero and stay, so that the size of every group is a multiple of `multiple`."""
    stay: set[int] = set()
    for group in topology.removable_groups:
        absent = [channel for channel in group.channels if channel in zero]
        present = group.size - len(absent)
        classes = lcm(multiple, group.block) // group.block  # a head has several channels
        wanted = min(group.size, -(-present // classes) * classes)
        stay.update(absent[: wanted - present])
    return frozenset(stay)
