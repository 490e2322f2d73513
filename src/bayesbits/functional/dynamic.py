"""Quantization by the range that a tensor has at run time: 8 bits, as ONNX's DynamicQuantizeLinear defines it.

With the smallest value a and the largest value b of the whole tensor, where zero counts as one of its values:

    step = (b - a) / 255,   zero_point = round(clip(-a / step, 0, 255)),   code = clip(round(x / step), -z, 255 - z)

Everything is computed in float32, operation by operation, and rounding is half to even, so that the codes are those of
a runtime. Codes are centered here: the code 0 is the number 0, and a runtime stores code + zero_point as uint8. A
tensor without a range, which holds zeros alone, has a step of 1.
"""

import torch
from torch import Tensor

DYNAMIC_BITS = 8
"""The width of a tensor that is quantized at run time."""
LEVELS = 2**DYNAMIC_BITS - 1


def dynamic_ends(x: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of the range of a tensor, in float32: its smallest and its largest value, zero included."""
    low, high = torch.aminmax(x.detach().float().flatten(), dim=0)  # exporters want the axis named
    return low.clamp(max=0.0), high.clamp(min=0.0)


def dynamic_grid(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The step and the zero point of the range between these ends."""
    step = (high - low) / LEVELS
    step = torch.where(step == 0, 1.0, step)
    return step, (-(low / step)).clamp(0, LEVELS).round()


def dynamic_codes(x: Tensor, step: Tensor, zero_point: Tensor) -> Tensor:
    """The codes of a tensor, centered: whole numbers in float32."""
    codes = torch.round(x.float() / step)
    return torch.minimum(torch.maximum(codes, -zero_point), LEVELS - zero_point)
