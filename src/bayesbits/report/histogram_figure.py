"""The histogram of a tensor, with the ends of its range and the codes of its grid drawn in."""

from __future__ import annotations

from math import sqrt

from markupsafe import Markup

from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.tensor_statistics import Histogram
from bayesbits.report.svg import element, label

WIDTH, HEIGHT = 300, 128
_TOP, _BOTTOM, _SIDE = 6.0, 104.0, 6.0
_MOST_CODES = 64  # more lines cannot be distinguished


def codes_of(tensor: Histogram) -> int:
    """The number of codes of a tensor's grid: those of a symmetric range are symmetric, and one is not used."""
    return int(2**tensor.bits - _is_symmetric(tensor)) if tensor.codes is None else tensor.codes


def _is_symmetric(tensor: Histogram) -> bool:
    return tensor.low == -tensor.high


def grid_of(tensor: Histogram) -> list[float]:
    """The values of the grid, where they are few enough to draw; zero is one of them."""
    if not 0 < tensor.bits <= 16 or codes_of(tensor) > _MOST_CODES:
        return []
    codes = codes_of(tensor)
    step = (tensor.high - tensor.low) / (codes - 1 + _is_symmetric(tensor))  # half a step beyond both outermost codes
    first = -(codes // 2) if _is_symmetric(tensor) else round(tensor.low / step)
    return [step * (first + code) for code in range(codes)]


def histogram(tensor: Histogram) -> Markup:
    """The image: heights are square roots of counts, so that rare values are seen beside the many zeros."""
    span = (tensor.last - tensor.first) or 1.0
    largest = sqrt(max(tensor.counts)) or 1.0

    def position(value: float) -> float:
        return _SIDE + (WIDTH - 2 * _SIDE) * (value - tensor.first) / span

    width = (WIDTH - 2 * _SIDE) / len(tensor.counts)
    heights = [(_BOTTOM - _TOP) * sqrt(count) / largest for count in tensor.counts]
    bars = "".join(
        f"M{_SIDE + width * place:.1f} {_BOTTOM:g}v{-height:.1f}h{width:.1f}v{height:.1f}"
        for place, height in enumerate(heights)
        if height > 0
    )
    lines = "".join(f"M{position(value):.1f} {_BOTTOM + 4:g}V{_TOP:g}" for value in grid_of(tensor))
    ends = "".join(f"M{position(value):.1f} {_BOTTOM + 8:g}V{_TOP:g}" for value in (tensor.low, tensor.high))
    low, high = position(tensor.low), position(tensor.high)
    return element(
        "svg",
        element("path", d=bars, class_="bars"),
        element("path", d=lines, class_="codes"),
        element("path", d=ends, class_="ends"),
        label(max(low, _SIDE), _BOTTOM + 20, f"{tensor.low:.3g}", "tick", "start"),
        label(min(high, WIDTH - _SIDE), _BOTTOM + 20, f"{tensor.high:.3g}", "tick", "end"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="histogram",
        role="img",
        aria_label=f"Histogram of {tensor.name}, range {tensor.low:.3g} to {tensor.high:.3g}",
    )


def grid_words(tensor: Histogram) -> str:
    """The grid in words."""
    if tensor.bits == 0:
        return "switched off: every value is 0"
    if tensor.bits == FLOAT_BITS:
        return "float: values are clipped and not rounded"
    drawn = "" if grid_of(tensor) else ", too many to draw"
    return f"{codes_of(tensor):,} codes{drawn}"
