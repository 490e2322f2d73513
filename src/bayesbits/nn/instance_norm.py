"""The attached instance norm: it gates the channels of the layer in front of it.

An instance norm divides every channel by its own spread, and so takes any factor in front of it away: a gate there
would not change the output until it is closed, and would get no gradient. So the gate stands behind it: scale and shift
are multiplied by the gate, which costs no pass over x, and a closed channel is exactly zero.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.nn.channel_gate import ChannelFollower, ChannelGate
from bayesbits.nn.class_exchange import AttachedModule, exchange_class
from bayesbits.utils.torch_private import check_input_dim

InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
RANKS: dict[type[nn.Module], int] = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
"""The number of dimensions of a batch."""


@dataclass
class InstanceNormParts:
    """What is attached to an instance norm."""

    gate: ChannelGate | ChannelFollower
    """Gates the channels of the layer in front."""


class AttachedInstanceNorm(AttachedModule):
    """Mixed into the class of an instance norm of torch."""

    parts: InstanceNormParts
    batch_rank: int
    """The number of dimensions of a batch; an image alone has one less."""

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        return {"batch_rank": RANKS[original]}

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        assert isinstance(self, InstanceNorm)
        gate = self.parts.gate
        if gate.idle:
            return super().forward(input)
        check_input_dim(self, input)
        values = gate.values().to(input.dtype if self.weight is None else self.weight.dtype)
        batch = input if input.dim() == self.batch_rank else input.unsqueeze(0)
        result = F.instance_norm(
            batch,
            self.running_mean,
            self.running_var,
            values if self.weight is None else self.weight * values,
            None if self.bias is None else self.bias * values,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return result if batch is input else result.squeeze(0)

    def release(self) -> None:
        del self.parts


def attach_instance_norm(norm: nn.Module, gate: ChannelGate | ChannelFollower) -> None:
    """Attach a gate to an instance norm of torch, in place."""
    norm.parts = InstanceNormParts(gate)  # type: ignore[assignment]
    exchange_class(norm, AttachedInstanceNorm)
