"""The bias of a layer, wherever it lies: its own, or where it has none, the shift of its batch norm.

A mean is taken behind the place that is corrected, so that a correction is seen by the next one. What a correction left
is remembered with what is attached: a network whose biases were corrected is, without its quantizers, not the float
network any more.
"""

import torch
from torch import Tensor

from bayesbits.baselines.input_means import norm_of
from bayesbits.baselines.observing import channel_axis
from bayesbits.compression.compressor import Compressor
from bayesbits.nn.batch_norm import AttachedBatchNorm
from bayesbits.nn.folding import fold_factor, round_bias
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.topology import Layer

_CORRECTED = "corrected biases"


class LayerBias:
    """What is corrected of a layer that has a bias, or whose batch norm has a shift."""

    def __init__(self, compressor: Compressor, layer: Layer, module: AttachedLayer) -> None:
        self.layer, self.module = layer, module
        self.norm = norm_of(compressor, layer) if module.bias is None else None
        self.place = layer.name if self.norm is None or layer.norm is None else layer.norm
        """The module behind which the bias is seen."""
        self.name = f"{self.place}.bias"
        self.parameter = compressor.model.get_parameter(self.name)
        self.gate = compressor.attachment.gate_of(layer.name)

    def mean(self) -> "Mean":
        """An empty mean of what is seen behind the bias."""
        return Mean(self)

    def axis(self, output: Tensor) -> int:
        """Where the channels lie in what is seen behind the bias."""
        return channel_axis(self.layer, output) % output.dim() if self.norm is None else 1

    def behind_norm(self, shift: Tensor) -> Tensor:
        """A shift of what the layer returns, as it is seen behind the bias."""
        return shift if self.norm is None else shift * fold_factor(self.norm).double()

    @torch.no_grad()
    def hold_rounding(self) -> None:
        """Make the bias what the network rounds it to, as what was measured has that in it."""
        if self.norm is not None:
            assert isinstance(self.norm, AttachedBatchNorm)
            rounded = self.norm.effective_shift()
            assert rounded is not None
            self.parameter.copy_(rounded)
        elif self.module.parts.rounds_bias and (step := self.module.bias_step()) is not None:
            self.parameter.copy_(round_bias(self.parameter, step))

    @torch.no_grad()
    def take_back(self, shift: Tensor) -> float:
        """Subtract a shift of the channels that the plan keeps; returns the root of its mean square."""
        if self.gate is not None:
            shift = shift * self.gate.values().to(shift)
        self.parameter.sub_(shift.to(self.parameter.dtype))
        return shift.square().mean().sqrt().item()


class Mean:
    """The mean of what is seen behind a bias, by channel, over batches, calls and positions."""

    def __init__(self, bias: LayerBias) -> None:
        self.bias = bias
        self.total: Tensor | None = None
        self.count = 0

    def see(self, _: Tensor, output: Tensor) -> None:
        axis = self.bias.axis(output)
        added = output.detach().double().movedim(axis, 0).flatten(1).sum(dim=1)
        self.total = added if self.total is None else self.total + added
        self.count += output.numel() // output.shape[axis]

    def read(self) -> Tensor:
        if self.total is None or self.count == 0:
            raise ValueError(f"no values reached {self.bias.layer.name} on these batches")
        mean = self.total / self.count
        if not bool(torch.isfinite(mean).all()):
            raise ValueError(f"what {self.bias.layer.name} returns on these batches has a mean that is not finite")
        return mean


def remember(compressor: Compressor, biases: list[LayerBias]) -> None:
    """Remember what a correction left, with the live network only: no checkpoint has it."""
    left = {bias.name: bias.parameter.detach().clone() for bias in biases}
    compressor.attachment.notes[_CORRECTED] = {**compressor.attachment.notes.get(_CORRECTED, {}), **left}


def check_uncorrected(compressor: Compressor, way_out: str) -> None:
    """Raise where a bias is still what a correction left."""
    for name, left in compressor.attachment.notes.get(_CORRECTED, {}).items():
        present = compressor.model.get_parameter(name).detach()
        if torch.equal(present, left.to(present)):
            raise ValueError(
                f"the biases of this network were corrected before ({name}, for one), so that without its quantizers "
                f"it is not the float network any more: {way_out}"
            )
