"""The weights and biases that the simulation computes with, against those that were derived: equal but for roundings.

Derived constants are deployed, and stand for the layers of the simulation where that is replayed in float64. This ties
them to the network that was trained.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.verification.derived import Constants
from bayesbits.deploy.verification.record import VerificationError
from bayesbits.nn.batch_norm import AttachedBatchNorm
from bayesbits.nn.folding import fold_factor, folded_bias, round_bias
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.topology import Layer
from bayesbits.utils.torch_private import BatchNorm

ROUNDINGS = 2.0**-20
"""Folding a batch norm into a weight and out again rounds some times to 24 bits."""


def check_trained(fixed: Compressor, constants: Mapping[str, Constants]) -> None:
    """Raise at the first layer whose weight or bias in the simulation is another one."""
    with torch.no_grad():
        for layer in fixed.topology.layers:
            module = fixed.model.get_submodule(layer.name)
            if isinstance(module, AttachedLayer):
                norm = None if layer.norm is None else fixed.model.get_submodule(layer.norm)
                assert isinstance(norm, BatchNorm | None)
                _check_layer(layer, module, norm, constants[layer.name])


def _check_layer(layer: Layer, module: AttachedLayer, norm: BatchNorm | None, constants: Constants) -> None:
    channels = len(layer.out_channels)
    factor = torch.ones(channels, dtype=torch.float64)
    if norm is not None:
        factor = fold_factor(norm, torch.float64)
    assert isinstance(norm, AttachedBatchNorm | None)
    gate = module.parts.gate if norm is None else norm.parts.gate
    gated = factor if gate is None else factor * gate.values().double()
    weight = module.effective_weight().double() * module.along_outputs(gated)
    _close(layer.name, "weight", weight, torch.from_numpy(constants.weight), torch.zeros(()))
    if constants.bias is None:
        return
    step = module.bias_step()
    if norm is None:
        assert module.bias is not None
        bias: Tensor = module.bias if step is None else round_bias(module.bias, step)
        size = bias.abs().double()
    else:
        shift = norm.effective_shift()
        wide = torch.zeros(channels, dtype=torch.float64) if shift is None else shift.double()
        bias = folded_bias(norm, factor, module.bias, wide)
        size = wide.abs() + (wide - bias).abs()
        size = size if norm.bias is None else size + norm.bias.abs()  # the shift before it was moved to the grid
    bias = bias.double() if gate is None else bias * gate.values().double()
    room = ROUNDINGS * size
    if step is not None and not constants.integer:  # in float the bias is deployed as it is
        room = room + 0.5 * step.double()
    _close(layer.name, "bias", bias, torch.from_numpy(constants.bias), room)


def _close(layer: str, what: str, trained: Tensor, derived: Tensor, room: Tensor) -> None:
    wrong = ~((trained - derived).abs() <= ROUNDINGS * derived.abs() + room)
    if bool(wrong.any()):
        raise VerificationError(
            f"{layer}: {int(wrong.sum())} of {wrong.numel()} numbers of the {what} that it was trained with are not "
            "those that plan and weights give"
        )
