"""Folding a batch norm into the layer in front of it: the only place that computes the factor and the folded bias.

A batch norm with frozen statistics multiplies each channel by the fold factor and adds a shift:

    f = gamma / sqrt(var + eps)          BN(w x + b) = (f w) x + (shift - (mean - b) f)

The factor is detached: through 1 / f, gamma would get huge gradients.

An integer layer adds its bias as a 32-bit number of input step times weight step. In trained networks many channels are
nearly dead: batch norm multiplies their weights by 1e-8 and adds a shift of ordinary size, which is too many of such
small steps. There the range of the channel's weights is widened until the bias fits (`widening`). What is lost are
weights that are too small to be seen beside the bias.
"""

import torch
from torch import Tensor

from bayesbits.functional.custom_ops import snapshot
from bayesbits.functional.grid import bias_codes
from bayesbits.utils.torch_private import BatchNorm

LARGEST_BIAS_CODE = 2**30
"""Half of what 32 bits hold; the other half is for the sums of products that the bias is added to."""
SMALLEST_BIAS_STEP = 1e-30
"""Input step times weight step stays far from the smallest numbers of float32."""


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
    mean = snapshot(norm.running_mean)
    mean = mean if bias is None else mean - bias
    return (0.0 if shift is None else shift) - mean * factor


def round_bias(bias: Tensor, step: Tensor) -> Tensor:
    """A bias rounded to whole numbers of `step`, as an integer layer adds it; gradients pass straight through."""
    bias_now, step = bias.detach(), step.detach()
    return bias + (bias_codes(bias_now, step) * step.double() - bias_now.double()).to(bias.dtype)


def widening(bias: Tensor, input_step: Tensor, weight_steps: Tensor) -> Tensor:
    """By how much the weight step of each channel grows for its bias to fit; 1 where it fits already. Detached."""
    bias_steps = (bias.detach().float().abs() / LARGEST_BIAS_CODE).clamp_min(SMALLEST_BIAS_STEP)
    return (bias_steps / input_step.detach() / weight_steps.detach()).clamp_min(1.0)
