"""The penalty of methods that learn widths without gates: what the network costs with the widths they have now."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesbits.cost import CostModel
from bayesbits.methods import MethodQuantizer
from bayesbits.nn import Quantizer
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import Topology

KINDS = ("paper", "expected_bops", "expected_bytes")
"""The penalties that such a method can have; "paper" is a formula over gates, and means the bit operations here."""


class WidthPenalty(nn.Module):
    """Relative bit operations in percent, or bytes of the weights, by one formula with the counted cost.

    It has no parameters and nothing in a state_dict, and is differentiable in what decides the widths.
    """

    integers: Tensor
    """0 to 32."""

    def __init__(
        self, topology: Topology, quantizers: Mapping[str, Quantizer], cost_model: CostModel, kind: str
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(
                f"Spec.penalty is {kind!r}, which is a formula over gates, and the method learns widths without gates: "
                f"choose one of {', '.join(KINDS)}"
            )
        self._quantizers = dict(quantizers)  # owned by the network's own modules
        self._tensors = [*topology.weight_tensors, *topology.table_tensors]
        self._tensors += [activation.name for activation in topology.activations]
        self.in_bytes = kind == "expected_bytes"
        self.cost_model = cost_model
        self.register_buffer("integers", torch.arange(FLOAT_BITS + 1, dtype=torch.float32), persistent=False)

    def forward(self, decided: bool = False) -> Tensor:
        """The cost; `decided`: with the widths of the present decision, without a gradient."""
        widths = {name: self._width(self._quantizers.get(name), decided) for name in self._tensors}
        if self.in_bytes:
            return self.cost_model.weight_bytes(widths, {})
        return self.cost_model.relative_bops(widths, {}, "exact")

    def _width(self, quantizer: Quantizer | None, decided: bool) -> Tensor:
        if quantizer is None or quantizer.mode == "off":
            return self.integers[FLOAT_BITS]
        if isinstance(quantizer, MethodQuantizer) and quantizer.mode == "learning" and not decided:
            return quantizer.expected_bits().to(self.integers)
        return self.integers[quantizer.effective_bits()]
