"""Building blocks of the SVG figures: escaped elements, labels, and axes with their ticks.

Colors and fonts come from the style sheet of the page, by class; lengths are in pixels of the figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

from markupsafe import Markup

EMPTY = Markup("")


def printable(text: str) -> str:
    """Text in which characters that are invisible or change the direction of writing are replaced."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


def element(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """An element; children that are not `Markup` are text, which is escaped.

    Attributes are written as Python names: `class_` stands for class, `text_anchor` for text-anchor.
    """
    written = EMPTY.join(
        Markup(' {}="{}"').format(key.removesuffix("_").replace("_", "-"), _attribute(value))
        for key, value in attributes.items()
    )
    content = EMPTY.join(child if isinstance(child, Markup) else printable(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, content)


def _attribute(value: str | float) -> str:
    """Numbers have at most two decimals: a hundredth of a pixel is enough."""
    return printable(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def label(x: float, y: float, text: str, style: str, anchor: str = "start") -> Markup:
    """Text at a position; `style` is its class."""
    return element("text", text, class_=style, x=x, y=y, text_anchor=anchor)


def horizontal_line(style: str, left: float, right: float, y: float) -> Markup:
    """A line from left to right."""
    return element("line", class_=style, x1=left, x2=right, y1=y, y2=y)


@dataclass(frozen=True)
class Axis:
    """Maps values from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def position(self, value: float) -> float:
        """The pixel of a value."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = log10(low), log10(high), log10(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values: powers of ten on a logarithmic axis, otherwise about five at equal distances."""
        if self.logarithmic:
            return [10.0**power for power in range(ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9) + 1)]
        step = _round_step((self.high - self.low) / 5)
        return [step * number for number in range(ceil(self.low / step), floor(self.high / step + 1e-9) + 1)]


def linear_axis(high: float, start: float, end: float) -> Axis:
    """An axis from zero to the first tick that is not below `high`."""
    step = _round_step((high or 1.0) / 5)
    return Axis(0.0, step * ceil((high or 1.0) / step - 1e-9), start, end)


def _round_step(step: float) -> float:
    """The smallest of 1, 2, 5 and 10 times a power of ten that is not below the step."""
    unit: float = 10.0 ** floor(log10(step))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= step * (1 - 1e-9))
