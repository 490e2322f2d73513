"""The baseline with fixed widths: one for weights and one for activations, such as 8/8, and calibrated ranges."""

from collections.abc import Iterable
from typing import Any

from bayesbits.compression.calibration import calibrate_weights
from bayesbits.compression.compressor import Compressor, check_gated
from bayesbits.compression.range_estimation import FINE_BITS
from bayesbits.records.plan import Plan


def uniform(
    compressor: Compressor,
    batches: Iterable[Any],
    weights: int = 8,
    activations: int = 8,
    *,
    method: str | None = None,
) -> Plan:
    """Calibrate the ranges on data and return a plan with one width for all weights and one for all activations.

    Where the spec or one of its rules fixes the width of a tensor, such as that of the network's input, it keeps that
    width. Tensors that were left in float stay in float.

    Args:
        compressor: The compressor of the network.
        batches: Batches of inputs, as for `Compressor.calibrate`.
        weights: The bits of all weights, tables of embeddings included.
        activations: The bits of all activations.
        method: How ranges are estimated, as for `Compressor.calibrate`. "mse" minimizes the squared error of weights
            and of activations, each at its own width. By default it is "minmax" at 8 bits or more, and "mse" below,
            for weights and for activations each.

    Returns:
        The plan, which `Compressor.fix` makes final.

    Raises:
        ValueError: If `method` is not known, or the batches are empty.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> x = torch.randn(32, 4)
        >>> compressor = bb.attach(model, x)
        >>> plan = bb.baselines.uniform(compressor, [x], weights=4, activations=8)
        >>> plan.bits["0.weight"], plan.bits["2.input"]
        (4, 8)
        >>> compressor.cost(plan).relative_bops
        3.125
    """
    check_gated(compressor, "uniform")
    of_activations = _default(activations) if method is None else method
    compressor.calibrate(batches, of_activations, reference_bits=activations, weight_bits=weights)
    if method is None and _default(weights) != of_activations:
        calibrate_weights(compressor.model, compressor.attachment, _default(weights), weights)
    topology, quantizers = compressor.topology, compressor.attachment.quantizers
    # With a spec of a single width, only the input and operands have a field of their own that can fix theirs.
    special = {activation.name for activation in topology.activations if activation.network_input}
    special |= set(topology.operand_tensors)
    if len(compressor.spec.bits) > 1:
        special |= set(quantizers)
    bits = dict(compressor.plan().bits)
    for name in bits:
        if name in quantizers and not (name in special and len(quantizers[name].bits) == 1):
            bits[name] = weights if name in topology.parameter_tensors else activations
    return Plan(bits)


def _default(bits: int) -> str:
    """The method for a width."""
    return "minmax" if bits >= FINE_BITS else "mse"
