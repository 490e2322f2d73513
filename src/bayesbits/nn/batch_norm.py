"""The attached batch norm: it gates its channels, and once widths are final it rounds the bias that is deployed.

Scale and shift are multiplied by the channel gate, which costs no pass over x. Where the batch norm is folded into an
integer layer at deployment, its shift is chosen such that the folded bias lies on the grid of that layer's biases.
Where it is folded into none, the scale of channels that are constants is zero (see `steady_channels`).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.nn.channel_gate import ChannelFollower, ChannelGate
from bayesbits.nn.class_exchange import AttachedModule, exchange_class
from bayesbits.nn.folding import fold_factor, folded_bias, round_bias
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.steady_channels import SteadyChannels
from bayesbits.utils.torch_private import BatchNorm, check_input_dim


@dataclass
class BatchNormParts:
    """What is attached to a batch norm; any of it may be missing."""

    gate: ChannelGate | ChannelFollower | None = None
    """Gates the channels of the layer in front."""
    layer: AttachedLayer | None = None
    """The layer that the batch norm is folded into at deployment."""
    steady: SteadyChannels | None = None
    """The channels that it reads, where it is folded into no layer and quantizers round them."""


class AttachedBatchNorm(AttachedModule):
    """Mixed into the class of a batch norm."""

    parts: BatchNormParts
    is_torchs_own: bool
    """The class is one of torch's, whose forward is known."""

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        return {"is_torchs_own": original in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)}

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        assert isinstance(self, BatchNorm)
        gate = self.parts.gate
        values = (
            None
            if gate is None or gate.idle
            else gate.values().to(input.dtype if self.weight is None else self.weight.dtype)
        )
        if not self.is_torchs_own:
            return self._around_forward(super().forward(input), values)
        check_input_dim(self, input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        keeps_statistics = not self.training or self.track_running_stats
        weight = self.effective_scale()
        bias = self.effective_shift()
        if values is not None:
            weight = values if weight is None else weight * values
            bias = None if bias is None else bias * values
        return F.batch_norm(
            input,
            self.running_mean if keeps_statistics else None,
            self.running_var if keeps_statistics else None,
            weight,
            bias,
            self.training or self.running_mean is None,
            momentum,
            self.eps,
        )

    def _around_forward(self, result: Tensor, values: Tensor | None) -> Tensor:
        """What the forward of an unknown class returned, with the shift moved and the channels gated afterwards."""
        assert isinstance(self, BatchNorm)
        shape = [1, -1] + [1] * (result.dim() - 2)
        shift = self.effective_shift()
        if shift is not None and shift is not self.bias:
            moved = shift if self.bias is None else shift - self.bias
            result = result + moved.detach().to(result.dtype).reshape(shape)
        return result if values is None else result * values.reshape(shape)

    def effective_scale(self) -> Tensor | None:
        """What batch norm multiplies with: zero for channels that are steady, in evaluation."""
        assert isinstance(self, BatchNorm)
        steady = None
        if self.parts.steady is not None and not self.training:
            assert self.running_mean is not None
            assert self.running_var is not None
            steady = self.parts.steady.mask(self.running_mean, self.running_var)
        return self.weight if steady is None else self.weight.masked_fill(steady, 0.0)

    def effective_shift(self) -> Tensor | None:
        """What batch norm adds last, such that the folded bias lies on its grid where that is final."""
        assert isinstance(self, BatchNorm)
        layer = self.parts.layer
        step = None if layer is None or self.training or self.running_mean is None else layer.bias_step()
        if step is None:
            return self.bias
        assert layer is not None
        factor = fold_factor(self)
        shift = torch.zeros_like(factor) if self.bias is None else self.bias
        folded = folded_bias(self, factor, None if layer.bias is None else layer.bias.detach(), shift)
        return shift + (round_bias(folded, step) - folded).detach()

    def release(self) -> None:
        del self.parts


def attach_batch_norm(norm: BatchNorm, parts: BatchNormParts) -> None:
    """Attach parts to a batch norm, in place."""
    norm.parts = parts  # type: ignore[assignment]
    exchange_class(norm, AttachedBatchNorm)
