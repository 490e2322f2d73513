"""The fixed baseline: one width for all weights and one for all activations, such as 8/8, with ranges from data."""

from collections.abc import Iterable
from typing import Any

from bayesbits.compression.compressor import Compressor
from bayesbits.records.plan import Plan


def uniform(
    compressor: Compressor, batches: Iterable[Any], weights: int = 8, activations: int = 8, *, method: str = "minmax"
) -> Plan:
    """Take the ranges from data and give the plan; `fix` makes it final.

    `method` is one of `Compressor.calibrate`; "mse" has the least error at the wider of the two widths. Where the spec
    fixes the width of the network's input or of operands of residual additions, they keep it; what was left in float
    stays there.
    """
    compressor.calibrate(batches, method, reference_bits=max(weights, activations))
    topology, quantizers = compressor.topology, compressor.attachment.quantizers
    apart = {activation.name for activation in topology.activations if activation.network_input}
    apart |= set(topology.operand_tensors)
    bits = dict(compressor.plan().bits)
    for name in bits:
        if name in quantizers and not (name in apart and len(quantizers[name].bits) == 1):
            bits[name] = weights if name in topology.weight_tensors else activations
    return Plan(bits)
