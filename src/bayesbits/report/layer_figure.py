"""The figure of the layers: bit widths, channels and share of the bit operations, as horizontal bars.

Behind every bar lies a gray one for the float network, so that a bar shows which part of it is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bayesbits.records.plan import FLOAT_BITS
from bayesbits.report.formatting import format_part
from bayesbits.report.svg import EMPTY, WIDTH, element, figure, horizontal_line, label

LAYERS_PER_FIGURE = 24  # what fits on a printed page

_NAME_CHARACTERS = 27
_HEAD, _ROW, _BAR, _GAP = 46, 36, 11, 3
_BITS = (210.0, 190.0)  # where the bars of a column start, and how long a full one is
_CHANNELS = (460.0, 170.0)
_SHARE = (740.0, 160.0)


@dataclass(frozen=True)
class LayerBars:
    """The numbers that are drawn for a layer; 0 channels where a part of the network has none of its own."""

    name: str
    weight_bits: int
    activation_bits: int
    kept_in: int
    channels_in: int
    kept_out: int
    channels_out: int
    share: float
    """The percentage of the network's bit operations."""


def layer_figures(layers: Sequence[LayerBars]) -> list[Markup]:
    """Figures of `LAYERS_PER_FIGURE` layers each, all on the same scale."""
    largest = max((layer.share for layer in layers), default=0.0) or 100.0
    starts = range(0, len(layers), LAYERS_PER_FIGURE)
    return [_figure(layers[start : start + LAYERS_PER_FIGURE], start, len(layers), largest) for start in starts]


def _figure(layers: Sequence[LayerBars], start: int, number: int, largest_share: float) -> Markup:
    shown = "" if len(layers) == number else f", layers {start + 1} to {start + len(layers)} of {number}"
    title = f"Bits, channels and share of the bit operations by layer{shown}"
    description = "; ".join(map(_description, layers))
    rows = [_layer(layer, _HEAD + _ROW * index, largest_share) for index, layer in enumerate(layers)]
    return figure(f"layers-{start}", _HEAD + _ROW * len(layers), title, description, _headings(), *rows)


def _description(layer: LayerBars) -> str:
    return (
        f"{layer.name}: {layer.weight_bits} bits of weights, {layer.activation_bits} of activations, "
        f"{format_part(layer.kept_in, layer.channels_in)} channels in, "
        f"{format_part(layer.kept_out, layer.channels_out)} out, {layer.share:.1f}% of BOPs"
    )


def _headings() -> Markup:
    return EMPTY.join(
        [
            label(_BITS[0], 14, "Bits, of 32", "head"),
            *_legend(_BITS[0], "weights", "weights"),
            *_legend(_BITS[0] + 78, "activations", "input activations"),
            label(_CHANNELS[0], 14, "Channels kept", "head"),
            *_legend(_CHANNELS[0], "channels-in", "in"),
            *_legend(_CHANNELS[0] + 40, "channels-out", "out"),
            label(_SHARE[0], 14, "Share of BOPs", "head"),
        ]
    )


def _legend(x: float, style: str, text: str) -> tuple[Markup, Markup]:
    """A square in the color of the bars, and what they mean."""
    return element("rect", class_=style, x=x, y=26, width=9, height=9), label(x + 13, 34, text, "note")


def _layer(layer: LayerBars, top: float, largest_share: float) -> Markup:
    """The row of a layer: its name, two bars of bits, two of channels, and one of its share."""
    first, second = top + 5, top + 5 + _BAR + _GAP
    middle = (first + second) / 2
    name = element("title", layer.name), _end(layer.name)
    parts = [
        horizontal_line("grid", 0, WIDTH, top),
        element("text", *name, class_="name", x=0, y=middle + 9.5),
        _bar(_BITS, first, "weights", layer.weight_bits, FLOAT_BITS, str(layer.weight_bits)),
        _bar(_BITS, second, "activations", layer.activation_bits, FLOAT_BITS, str(layer.activation_bits)),
    ]
    for y, style, kept, channels in (
        (first, "channels-in", layer.kept_in, layer.channels_in),
        (second, "channels-out", layer.kept_out, layer.channels_out),
    ):
        if channels:
            parts.append(_bar(_CHANNELS, y, style, kept, channels, format_part(kept, channels)))
    parts.append(_bar(_SHARE, middle, "share", layer.share, largest_share, f"{layer.share:.1f}%"))
    return EMPTY.join(parts)


def _bar(column: tuple[float, float], y: float, style: str, value: float, full: float, text: str) -> Markup:
    """A bar on a gray one of full length, with its value to the right."""
    x, length = column
    return EMPTY.join(
        [
            element("rect", class_="track", x=x, y=y, width=length, height=_BAR),
            element("rect", class_=style, x=x, y=y, width=length * value / full, height=_BAR),
            label(x + length + 6, y + _BAR - 1.5, text, "value"),
        ]
    )


def _end(name: str) -> str:
    """The last characters of a long name: they distinguish layers better than the first."""
    return name if len(name) <= _NAME_CHARACTERS else "…" + name[1 - _NAME_CHARACTERS :]
