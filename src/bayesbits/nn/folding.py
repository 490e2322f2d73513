"""Folding a batch norm into the layer in front of it: the only place that computes the factor and the folded bias.

A batch norm with frozen statistics multiplies each channel by the fold factor and adds a shift:

    f = gamma / sqrt(var + eps)          BN(w x + b) = (f w) x + (shift - (mean - b) f)

The factor is detached: through 1 / f, gamma would get huge gradients.
"""

import torch
from torch import Tensor

from bayesbits.functional.custom_ops import snapshot
from bayesbits.functional.grid import bias_codes
from bayesbits.utils.torch_private import BatchNorm


def fold_factor(norm: BatchNorm, dtype: torch.dtype | None = None) -> Tensor:
    """gamma / sqrt(var + eps) of every channel, detached; in the dtype of the statistics, or in another one."""
    assert norm.running_var is not None
    variance = snapshot(norm.running_var)
    factor = torch.rsqrt((variance if dtype is None else variance.to(dtype)) + norm.eps)
    return factor if norm.weight is None else factor * norm.weight.detach()


def folded_bias(norm: BatchNorm, factor: Tensor, bias: Tensor | None, shift: Tensor | None) -> Tensor:
    """shift - (mean - bias) f: the bias of the layer with the batch norm folded into it.

    `bias` is the layer's own, `shift` is what the batch norm adds last; each is None where there is none.
    """
    assert norm.running_mean is not None
    mean = norm.running_mean if bias is None else norm.running_mean - bias
    return (0.0 if shift is None else shift) - mean * factor


def round_bias(bias: Tensor, step: Tensor) -> Tensor:
    """A bias rounded to whole numbers of `step`, as an integer layer adds it; gradients pass straight through."""
    bias_now, step = bias.detach(), step.detach()
    return bias + (bias_codes(bias_now, step) * step.double() - bias_now.double()).to(bias.dtype)
