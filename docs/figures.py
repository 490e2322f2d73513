"""The paper's figures from our runs: bits and channels by layer, gates over the search, and the decomposition of a
tensor, made of the files in experiments/results."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log2
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from bayesbits.report.svg import Axis, element
from docs.drawing import COLORS, FAINT, FONT, GRID, INK, WIDTH, draw_line, draw_text
from docs.searches import EXPERIMENTS, Search, searches

BITS = {0: "#c4ccd4", 2: "#bfe3e0", 4: "#6fbccb", 8: "#2f7fb5", 16: "#254f94", 32: "#1d2f5c"}
WEIGHTS, INPUTS, CHANNELS = "#1f5fa8", "#c9690c", "#d5dde4"
NARROW = 60
"""Pixels for a layer below which only its name fits."""
PREFERRED = ("cifar10-vgg7-distilled", "cifar10-vgg7", "cifar10", "fashion", "mnist", "digits")
"""Which results a figure shows, by the beginning of their names: the first that has what is needed."""


def chosen(needs: str, folder: Path = EXPERIMENTS, *, whole: bool = False) -> Search | None:
    """The search that a figure shows, of those whose first seed has a field; with `whole` every seed must have it.

    Those that held images back come last; then `PREFERRED` decides, and then the number of seeds.
    """
    found = [
        one for one in searches(folder) if all(result.get(needs) for result in one.results[: None if whole else 1])
    ]
    return min(found, key=lambda one: (one.choosing, _preference(one.name), -one.seeds, one.name), default=None)


def _preference(name: str) -> int:
    return next((place for place, start in enumerate(PREFERRED) if name.startswith(start)), len(PREFERRED))


def image(title: str, height: float, *parts: Markup) -> Markup:
    """A figure with its title."""
    return element(
        "svg", element("rect", width=WIDTH, height=height, rx=6, fill="#ffffff"),
        draw_text(16, 22, title, size=13.5, weight="600"), *parts,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height:g}", width="100%", role="img",
        aria_label=title, font_family=FONT,
    )  # fmt: skip


def layers(search: Search) -> Markup:
    """Bits of weights and inputs, and the channels that are left, layer by layer: means over the seeds."""
    names = [layer["name"] for layer in search.first["layers"]]
    left, right, top, floor = 56.0, WIDTH - 16.0, 64.0, 250.0
    rows = [layer for result in search.results for layer in result["layers"]]
    widest = max(layer[key] or 1 for layer in rows for key in ("weight_bits", "activation_bits"))
    up = Axis(0, log2(widest), floor, top)
    parts = []
    channels = "output channels left (full height: all)"
    keys = {"bits of weights": WEIGHTS, "bits of inputs": INPUTS, channels: CHANNELS}
    for place, (words, color) in enumerate(keys.items()):
        parts += _key(left + 150 * place, color, words)
    for bits in (width for width in (1, 2, 4, 8, 16, 32) if width <= widest):
        y = up.position(log2(bits))
        parts += [draw_line(left, y, right, y, GRID), draw_text(left - 7, y + 4, f"{bits}", anchor="end", color=FAINT)]
    slot = (right - left) / len(names)
    bar = min(20.0, slot / 4)
    for place, name in enumerate(names):
        own = [next(layer for layer in one["layers"] if layer["name"] == name) for one in search.results]
        x = left + slot * (place + 0.5)
        kept = fmean(layer["kept_out"] / layer["channels_out"] if layer["channels_out"] else 1.0 for layer in own)
        height = (floor - top) * kept
        parts.append(element("rect", x=x - 1.6 * bar, y=floor - height, width=3.2 * bar, height=height, fill=CHANNELS))
        for side, key, color in ((-1.2, "weight_bits", WEIGHTS), (0.2, "activation_bits", INPUTS)):
            y = up.position(fmean(log2(layer[key] or 1) for layer in own))
            parts.append(element("rect", x=x + side * bar, y=y, width=bar, height=floor - y, fill=color))
        if slot < NARROW:  # many layers: their names alone, upright
            y = floor + 10
            parts.append(draw_text(x + 4, y, name, anchor="end", size=10, transform=f"rotate(-70 {x + 4:g} {y:g})"))
            continue
        words = (name, f"{100 * kept:.0f}% left", f"{fmean(layer['share'] for layer in own):.1f}% of cost")
        parts += [
            draw_text(x, floor + 16 + 15 * row, word, anchor="middle", color=FAINT if row else INK, size=10.5)
            for row, word in enumerate(words)
        ]
    title = f"{search.name}: what was learned, {mean_of_seeds(search)}"
    return image(title, floor + (62 if slot >= NARROW else 24 + 6 * max(map(len, names))), *parts)


def gates(search: Search) -> Markup:
    """The bits of every tensor and the channels of every layer over the search, of the first seed."""
    history = search.first["history"]
    part, bits, kept = history["part"], history["bits"], history["kept"]
    longest = max(len(name) for name in (*bits, *kept))
    left, right, top, row = 24 + 6.2 * longest, WIDTH - 96.0, 62.0, 15.0
    across = Axis(0, 1, left, right)
    widths = sorted({width for values in bits.values() for width in values})
    parts = []
    for place, width in enumerate(widths):
        parts += _key(left + 78 * place, _color(width), f"{width} bits")
    y = top
    for name, values in bits.items():
        parts += [draw_text(left - 8, y + 10, name, anchor="end", size=10.5)]
        parts += _strip(part, [_color(width) for width in values], across, y)
        parts.append(draw_text(right + 8, y + 10, f"{values[-1]} bits", color=FAINT, size=10.5))
        y += row
    y += 8
    for name, counts in kept.items():
        full = next(layer["channels_out"] for layer in search.first["layers"] if layer["name"] == name)
        shades = [1.0 if count is None else count / full for count in counts]
        parts += [draw_text(left - 8, y + 10, f"{name}", anchor="end", size=10.5)]
        parts += _strip(part, [_shade(shade) for shade in shades], across, y)
        parts.append(draw_text(right + 8, y + 10, f"{counts[-1]} channels", color=FAINT, size=10.5))
        y += row
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(draw_text(across.position(tick), y + 14, f"{100 * tick:.0f}%", anchor="middle", color=FAINT))
    words = "part of the search (below: channels, darker where more are left)"
    parts.append(draw_text((left + right) / 2, y + 32, words, anchor="middle"))
    return image(f"{search.name}: gates over the search, seed {search.first['seed']}", y + 44, *parts)


def _key(x: float, color: str, words: str) -> list[Markup]:
    """An entry of a legend."""
    return [element("rect", x=x, y=36, width=11, height=11, fill=color), draw_text(x + 16, 46, words)]


def _strip(part: Sequence[float], colors: Sequence[str], across: Axis, y: float) -> list[Markup]:
    """Rectangles over time; equal neighbors are one."""
    found: list[Markup] = []
    start, begun = 0.0, 0
    for place, end in enumerate(part):
        if place + 1 == len(part) or colors[place + 1] != colors[begun]:
            x1, x2 = across.position(start), across.position(end)
            found.append(element("rect", x=x1, y=y, width=x2 - x1, height=12, fill=colors[begun]))
            start, begun = end, place + 1
    return found


def _color(bits: int) -> str:
    return BITS[next(width for width in BITS if bits <= width)]


def _shade(part: float) -> str:
    """From light, where nothing is left, to dark."""
    light, dark = (0xEE, 0xF1, 0xF4), (0x3E, 0x4C, 0x59)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(light, dark, strict=True))


def decomposition(found: Mapping[str, Any]) -> Markup:
    """The terms of a tensor over its values, one below the other."""
    values = found["examples"]
    # A residual that goes up and down more often than there are values to draw it from is left out.
    terms = [found["terms"][0], *(b for a, b in pairwise(found["terms"]) if 2 ** a["bits"] <= len(values) / 4)]
    left, right, row, top = 108.0, WIDTH - 16.0, 84.0, 50.0
    across = Axis(min(values), max(values), left, right)
    parts = []
    for place, term in enumerate([None, *terms]):
        numbers = values if term is None else term["examples"]
        y1, y2 = top + row * place + 8, top + row * (place + 1) - 10
        reach = max(map(abs, numbers)) or 1.0
        up = Axis(-reach, reach, y2, y1)
        closed = term is not None and not term["kept"]
        color = INK if term is None else FAINT if closed else COLORS[1]
        name = "x" if term is None else f"x_{term['bits']}" if place == 1 else f"eps_{term['bits']}"
        parts += [
            draw_line(left, up.position(0), right, up.position(0), GRID),
            draw_text(16, (y1 + y2) / 2 - 6, name, size=13),
        ]
        if term is not None:
            words = (f"{term['error']:.2g}% error left", "closed by its gate" if closed else "kept")
            parts += [
                draw_text(16, (y1 + y2) / 2 + 8 + 13 * n, one, color=FAINT, size=10) for n, one in enumerate(words)
            ]
        for value in (-reach, reach):
            y = up.position(value) + 4
            parts.append(draw_text(left - 4, y, f"{value:.2g}", anchor="end", color=FAINT, size=9))
        places = " ".join(
            f"{across.position(x):.1f},{up.position(y):.1f}" for x, y in zip(values, numbers, strict=True)
        )
        look = {"stroke": color, "stroke_width": 1.6, "stroke_dasharray": "4 3" if closed else "none"}
        parts.append(element("polyline", points=places, fill="none", **look))
    bottom = top + row * (len(terms) + 1)
    words = f"the values of {found['name']}, from the smallest to the largest"
    parts.append(draw_text((left + right) / 2, bottom + 14, words, anchor="middle"))
    title = f"{found['name']} as a sum of its rounding to {terms[0]['bits']} bits and of residuals"
    return image(title, bottom + 26, *parts)


def decompositions(folder: Path = EXPERIMENTS) -> list[Mapping[str, Any]]:
    """All decompositions that were kept, those of `PREFERRED` runs first."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("decomposition-*.json"))]
    return sorted(found, key=lambda one: _preference(one["run"]))


def mean_of_seeds(search: Search) -> str:
    """How many seeds a figure shows, in words."""
    return "1 seed" if search.seeds == 1 else f"mean of {search.seeds} seeds"
