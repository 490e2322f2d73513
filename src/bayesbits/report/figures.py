"""The figure of the layers: bits, channels and share of the bit operations.

What a bar's full length stands for is drawn behind it, so that every bar is what is left of what there was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bayesbits.report.markup import Markup, join, tag
from bayesbits.report.numbers import part_of
from bayesbits.report.svg import WIDTH, label, svg

FLOAT_BITS = 32
LAYERS_IN_A_FIGURE = 24  # a page when printed

_NAME_CHARACTERS = 27
_HEAD, _ROW, _BAR, _GAP = 46, 36, 11, 3
_BITS = (210.0, 190.0)  # where the bars start, and how long a full one is
_CHANNELS = (460.0, 170.0)
_SHARE = (740.0, 160.0)


@dataclass(frozen=True)
class LayerBars:
    """What is drawn of one layer; a part of the network without channels of its own has 0 of them."""

    name: str
    weight_bits: int
    activation_bits: int
    kept_in: int
    channels_in: int
    kept_out: int
    channels_out: int
    share: float
    """Of the bit operations, in percent."""


def layer_figures(layers: Sequence[LayerBars]) -> list[Markup]:
    """Bits, channels and share of the bit operations of every layer, in figures that fit on a page each."""
    most = max((layer.share for layer in layers), default=0.0) or 100.0
    starts = range(0, len(layers), LAYERS_IN_A_FIGURE)
    return [_layer_figure(layers[start : start + LAYERS_IN_A_FIGURE], start, len(layers), most) for start in starts]


def _layer_figure(layers: Sequence[LayerBars], start: int, number: int, most: float) -> Markup:
    shown = "" if len(layers) == number else f", layers {start + 1} to {start + len(layers)} of {number}"
    said = "; ".join(
        f"{layer.name}: {layer.weight_bits} bits of weights, {layer.activation_bits} of activations, "
        f"{part_of(layer.kept_in, layer.channels_in)} channels in, {part_of(layer.kept_out, layer.channels_out)} out, "
        f"{layer.share:.1f}% of BOPs"
        for layer in layers
    )
    rows = [_layer_row(layer, _HEAD + _ROW * index, most) for index, layer in enumerate(layers)]
    title = f"Bits, channels and share of the bit operations by layer{shown}"
    return svg(f"layers-{start}", _HEAD + _ROW * len(layers), title, said, _heads(), *rows)


def _heads() -> Markup:
    def legend(x: float, kind: str, text: str) -> Markup:
        return join([tag("rect", class_=kind, x=x, y=26, width=9, height=9), label(x + 13, 34, text, "note")])

    return join(
        [
            label(_BITS[0], 14, "Bits, of 32", "head"),
            legend(_BITS[0], "weights", "weights"),
            legend(_BITS[0] + 78, "activations", "input activations"),
            label(_CHANNELS[0], 14, "Channels kept", "head"),
            legend(_CHANNELS[0], "channels-in", "in"),
            legend(_CHANNELS[0] + 40, "channels-out", "out"),
            label(_SHARE[0], 14, "Share of BOPs", "head"),
        ]
    )


def _layer_row(layer: LayerBars, top: float, most: float) -> Markup:
    first, second = top + 5, top + 5 + _BAR + _GAP
    middle = (first + second) / 2
    parts = [
        _rule(top),
        tag("text", tag("title", layer.name), _shortened(layer.name), class_="name", x=0, y=middle + 9.5),
        _bar(_BITS, first, "weights", layer.weight_bits, FLOAT_BITS, str(layer.weight_bits)),
        _bar(_BITS, second, "activations", layer.activation_bits, FLOAT_BITS, str(layer.activation_bits)),
    ]
    for y, kind, kept, number in (
        (first, "channels-in", layer.kept_in, layer.channels_in),
        (second, "channels-out", layer.kept_out, layer.channels_out),
    ):
        if number:
            parts.append(_bar(_CHANNELS, y, kind, kept, number, part_of(kept, number)))
    parts.append(_bar(_SHARE, middle, "share", layer.share, most, f"{layer.share:.1f}%"))
    return join(parts)


def _bar(column: tuple[float, float], y: float, kind: str, value: float, full: float, written: str) -> Markup:
    """A bar in front of what its full length stands for, and its value behind both."""
    x, length = column
    return join(
        [
            tag("rect", class_="track", x=x, y=y, width=length, height=_BAR),
            tag("rect", class_=kind, x=x, y=y, width=length * value / full, height=_BAR),
            label(x + length + 6, y + _BAR - 1.5, written, "value"),
        ]
    )


def _rule(y: float) -> Markup:
    return tag("line", class_="grid", x1=0, x2=WIDTH, y1=y, y2=y)


def _shortened(name: str) -> str:
    """A name that fits; its end tells layers apart."""
    return name if len(name) <= _NAME_CHARACTERS else "…" + name[1 - _NAME_CHARACTERS :]
