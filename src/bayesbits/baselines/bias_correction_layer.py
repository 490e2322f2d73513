"""The bias that is corrected for a layer: its own, or where it has none, the shift of its batch norm.

Means are taken at the output of the module that owns the bias, so that a later correction sees an earlier one.
"""

import torch
from torch import Tensor

from bayesbits.baselines.layerwise import channel_axis, norm_of
from bayesbits.compression.compressor import Compressor
from bayesbits.nn.batch_norm import AttachedBatchNorm
from bayesbits.nn.folding import fold_factor, round_bias
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.topology import Layer


class LayerBias:
    """The bias of a layer, or the shift of its batch norm."""

    def __init__(self, compressor: Compressor, layer: Layer, module: AttachedLayer) -> None:
        self.layer, self.module = layer, module
        self.norm = norm_of(compressor.model, layer) if module.bias is None else None
        self.module_name = layer.name if self.norm is None or layer.norm is None else layer.norm
        """The module that owns the bias, and at whose output the mean is taken."""
        parameter = module.stored_bias if self.norm is None else self.norm.bias
        assert parameter is not None
        self.parameter = parameter
        self.name = next(name for name, own in compressor.model.named_parameters() if own is parameter)
        self.gate = compressor.attachment.gate_of(layer.name)

    def mean(self) -> "Mean":
        """An empty mean of the output of the module that owns the bias."""
        return Mean(self)

    def axis(self, output: Tensor) -> int:
        """The axis of the channels in the output of the module that owns the bias."""
        return channel_axis(self.layer, output) % output.dim() if self.norm is None else 1

    def after_norm(self, shift: Tensor) -> Tensor:
        """A shift of the layer's output as a shift of the output of the module that owns the bias."""
        return shift if self.norm is None else shift * fold_factor(self.norm).double()

    @torch.no_grad()
    def round_parameter(self) -> None:
        """Set the bias to the value that the network rounds it to, which the measured mean contains."""
        if self.norm is not None:
            assert isinstance(self.norm, AttachedBatchNorm)
            rounded = self.norm.effective_shift()
            assert rounded is not None
            self.parameter.copy_(rounded)
        elif self.module.parts.rounds_bias and (step := self.module.bias_step()) is not None:
            self.parameter.copy_(round_bias(self.parameter, step))

    @torch.no_grad()
    def subtract(self, shift: Tensor) -> float:
        """Subtract a shift from the channels that the plan keeps; returns its root mean square."""
        if self.gate is not None:
            shift = shift * self.gate.values().to(shift)
        self.parameter.sub_(shift.to(self.parameter.dtype))
        return shift.square().mean().sqrt().item()


class Mean:
    """The mean of a module's output by channel, over batches, calls and positions."""

    def __init__(self, bias: LayerBias) -> None:
        self.bias = bias
        self.total: Tensor | None = None
        self.count = 0

    def add(self, _: Tensor, output: Tensor) -> None:
        """Add an output; the input of the module is not used."""
        axis = self.bias.axis(output)
        added = output.detach().double().movedim(axis, 0).flatten(1).sum(dim=1)
        self.total = added if self.total is None else self.total + added
        self.count += output.numel() // output.shape[axis]

    @property
    def values(self) -> int:
        """The number of values so far."""
        return 0 if self.total is None else self.count * self.total.numel()

    def value(self) -> Tensor:
        """The mean of all outputs; raises where there are none, or where it is not finite."""
        if self.total is None or self.count == 0:
            raise ValueError(f"no values reached {self.bias.layer.name} on these batches")
        mean = self.total / self.count
        if not bool(torch.isfinite(mean).all()):
            raise ValueError(f"the output of {self.bias.layer.name} on these batches has a mean that is not finite")
        return mean
