"""The fixed baseline: one width for all weights and one for all activations, such as 8/8, with ranges from data."""

from collections.abc import Iterable
from typing import Any

from bayesbits.compressor import Compressor
from bayesbits.plan import Plan


def uniform(
    compressor: Compressor, batches: Iterable[Any], weights: int = 8, activations: int = 8, *, method: str = "minmax"
) -> Plan:
    """Take the ranges from data and give the plan; `fix` makes it final.

    `method` is one of `Compressor.calibrate`; "mse" has the least error at the wider of the two widths. The network's
    input and the operands of residual additions keep the widths of the spec, and what was left in float stays there.
    """
    compressor.calibrate(batches, method, reference_bits=max(weights, activations))
    topology, quantizers = compressor.topology, compressor.attachment.quantizers
    inputs = {activation.name for activation in topology.activations if activation.network_input}
    bits = dict(compressor.plan().bits)
    for name in bits:
        if name in quantizers and name not in inputs and name not in topology.operand_tensors:
            bits[name] = weights if name in topology.weight_tensors else activations
    return Plan(bits)
