"""The attached recurrent layer: an `nn.LSTM`, `nn.GRU` or `nn.RNN` of the user's network with quantized weights.

    forward:   lstm(x, state, [weight_ih_l0, weight_hh_l0, bias_ih_l0, ...])
    attached:  lstm(x, state, [Q(weight_ih_l0), Q(weight_hh_l0), bias_ih_l0, ...])

Activations, states and biases stay in float, as runtimes have no integer recurrence. A weight is quantized once in a
forward pass, whatever the length of the sequence.
"""

import functools
from typing import Any

from torch import nn

from bayesbits.nn.table import AttachedTable
from bayesbits.utils.torch_private import with_recurrent_weights


class AttachedRecurrent(AttachedTable):
    """Mixed into the class of a recurrent layer with the forward of torch."""

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        @functools.wraps(original.forward)
        def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
            parts = self.bayesbits_table
            parts.calibration.check()
            weights = {name: self.quantized(name) for name in parts.quantizers}
            return original.forward(with_recurrent_weights(self, original, weights), *arguments, **keywords)

        return {"forward": forward}
