"""What deployment reads of a compressor: a float copy of the network, and all numbers that were decided.

The compressor is not changed: its network is copied, the plan is made final in the copy, everything is read from there,
and the copy is detached to the float network that is exported.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.functional.grid import INTEGER_BITS, code_bounds
from bayesbits.nn import GatedQuantizer
from bayesbits.nn.folding import fold_factor, folded_bias
from bayesbits.nn.layer import AttachedLayer, LayerParts
from bayesbits.records.integer_network import Grid
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer, Topology, output_axis
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.torch_private import BatchNorm, tree_map_only

LARGEST_CODED_BITS = 16


@dataclass(frozen=True)
class Weights:
    """The final weight and bias of a layer, batch norm folded, in their full shapes."""

    bits: int
    weight: Tensor
    """The numbers, on their grid where there is one."""
    codes: Tensor | None
    """The codes, or None above 16 bits."""
    steps: Tensor | None
    """One step, or one for each output channel; None without codes."""
    bias: Tensor | None


@dataclass(frozen=True)
class Decision:
    """A float network, and what was decided about it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    topology: Topology
    removed: frozenset[int]
    """The channel classes that are taken out."""
    weights: Mapping[str, Weights]
    """By the layer's name."""
    grids: Mapping[str, Grid]
    """By the tensor's name; tensors without a quantizer are not there."""


def read_decision(compressor: Compressor, channel_multiple: int = 1) -> Decision:
    """Everything that deployment needs to know, from a compressor that stays as it is."""
    if not compressor.attachment.calibrated:
        raise ValueError("the ranges of the activations are not known yet: call compressor.calibrate(batches) first")
    if compressor.attachment.example_inputs is None:
        raise ValueError("this network was attached by an earlier version that kept no example inputs: attach it again")
    _check_precision(compressor.model)
    _check_fixed(compressor)
    plan = compressor.plan()
    fixed = Compressor(copy.deepcopy(compressor.model).cpu().float().eval())
    fixed.fix(plan)
    topology = fixed.topology
    if not topology.traced:
        raise ValueError(
            "torch.export cannot read this network, and deployment needs its graph; topology.unsupported says what "
            "stood in the way. Way out: rewrite that part (branches on data, mostly), or deploy the part that exports"
        )
    args, kwargs = fixed.attachment.example_inputs or ((), {})
    args, kwargs = tree_map_only(Tensor, _plain_example, (args, kwargs))
    gone = plan.removed(topology)
    with torch.no_grad(), evaluation_mode(fixed.model):
        weights = {layer.name: _weights(fixed, layer, plan, gone) for layer in topology.layers}
        grids = {
            name: _grid(name, quantizer)
            for name, quantizer in fixed.attachment.quantizers.items()
            if quantizer.mode != "off" and name not in topology.weight_tensors
        }
    removed = gone - _brought_back(topology, gone, channel_multiple)
    return Decision(fixed.detach(), args, kwargs, topology, removed, weights, grids)


def _check_precision(model: nn.Module) -> None:
    """Raise where the network computes in less than single precision, which the deployed one would not do."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < torch.finfo(torch.float32).bits:
            raise ValueError(
                f"{name} is in {str(tensor.dtype).removeprefix('torch.')}, and a deployed network computes in float32: "
                "its codes would be others. Way out: model.float(), look at its accuracy once more, and deploy that"
            )


def _check_fixed(compressor: Compressor) -> None:
    """Raise where something is still being learned: biases and channels are final only behind `fix`."""
    attachment = compressor.attachment
    learning = [name for name, quantizer in attachment.quantizers.items() if quantizer.mode == "learning"]
    learning += [f"the channels of {name}" for name, gate in attachment.channel_gates.items() if not gate.fixed]
    if learning:
        raise ValueError(
            f"bits or channels are not final yet ({learning[0]}, for one), and what the network computes now is not "
            "what would be deployed. Way out: compressor.fix(), or compressor.fix(plan), and deploy that"
        )


def _plain_example(tensor: Tensor) -> Tensor:
    tensor = tensor.cpu()
    return tensor.float() if tensor.is_floating_point() else tensor


def _grid(name: str, quantizer: GatedQuantizer) -> Grid:
    bits, signed = quantizer.effective_bits(), quantizer.signed
    beta = quantizer.beta.detach()
    low, high = code_bounds(bits, signed)
    return Grid(name, bits, signed, quantizer.step().item(), low, high, beta.item())


def _weights(compressor: Compressor, layer: Layer, plan: Plan, gone: frozenset[int]) -> Weights:
    """The weight on its grid and the bias, with the rows of channels that the layer does not emit at zero."""
    module = compressor.model.get_submodule(layer.name)
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor | None)
    parts = module.parts if isinstance(module, AttachedLayer) else LayerParts()
    axis = output_axis(layer.kind, layer.groups)
    factor = None
    if layer.norm is not None:
        norm = compressor.model.get_submodule(layer.norm)
        assert isinstance(norm, BatchNorm)
        factor = fold_factor(norm)
        bias = folded_bias(norm, factor, bias, norm.bias)
    keep = _kept_rows(layer, plan, gone)
    bias = bias if bias is None else torch.where(keep, bias, 0.0)
    bits = 32 if parts.weight is None else parts.weight.effective_bits()
    if parts.weight is None or bits > LARGEST_CODED_BITS:
        assert isinstance(module, AttachedLayer) or parts.weight is None
        numbers = module.effective_weight() if isinstance(module, AttachedLayer) else weight
        numbers = numbers if factor is None else numbers * _along(factor, layer, weight, axis)
        return Weights(bits, _masked(numbers, keep, layer, axis), None, None, bias)
    assert isinstance(module, AttachedLayer)
    codes = module.folded_codes()
    steps = parts.weight.step().reshape(-1)
    if factor is not None and parts.norm is None:
        # What is rounded has no factor in it (tied weights): that of a channel goes into its step, its sign into codes.
        codes = codes * _along(factor.sign(), layer, weight, axis).int()
        steps = torch.where(factor == 0, steps, steps * factor.abs())
    codes = _masked(codes, keep, layer, axis)
    spread = steps if steps.numel() == 1 else _along(steps, layer, weight, axis)
    return Weights(
        bits, codes.float() * spread, codes.to(torch.int8 if bits <= INTEGER_BITS else torch.int16), steps, bias
    )


def _kept_rows(layer: Layer, plan: Plan, gone: frozenset[int]) -> Tensor:
    kept = set(plan.kept.get(layer.name, range(len(layer.out_channels))))
    return torch.tensor([i in kept and channel not in gone for i, channel in enumerate(layer.out_channels)])


def _masked(tensor: Tensor, keep: Tensor, layer: Layer, axis: int) -> Tensor:
    """A weight with zeros where its output channels are not kept."""
    if bool(keep.all()):
        return tensor
    return torch.where(_along(keep, layer, tensor, axis), tensor, torch.zeros((), dtype=tensor.dtype))


def _along(values: Tensor, layer: Layer, weight: Tensor, axis: int) -> Tensor:
    """A vector over the output channels in a shape that broadcasts against the weight."""
    if layer.kind == "conv_transpose" and layer.groups > 1 and not layer.depthwise:
        raise ValueError(
            f"the weight of {layer.name}, a transposed convolution with groups, has no axis of output channels, along "
            "which its batch norm could be folded. Way out: one convolution for each group"
        )
    return values.reshape(*[1] * axis, -1, *[1] * (weight.dim() - axis - 1))


def _brought_back(topology: Topology, gone: frozenset[int], multiple: int) -> frozenset[int]:
    """Channel classes that stay, as zeros, so that every group has a multiple of channels; the function is the same."""
    back: set[int] = set()
    for group in topology.removable_groups:
        absent = [channel for channel in group.channels if channel in gone]
        present = group.size - len(absent)
        wanted = min(group.size, -(-present // multiple) * multiple)
        back.update(absent[: wanted - present])
    return frozenset(back)
