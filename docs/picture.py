"""`python -m docs.picture`: draw the pictures of the README from experiments/results.

docs/images/vgg7.svg is what a search decided, and docs/images/pareto.svg accuracy over cost, as on the page of results.
"""

import json
import math
from pathlib import Path
from typing import Any

from docs.pareto import EXPERIMENTS_SHOWN, pareto

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "experiments" / "results" / "cifar10-vgg7-distilled-budget0.28-seed0.json"
PICTURE = ROOT / "docs" / "images" / "vgg7.svg"
PARETO = ROOT / "docs" / "images" / "pareto.svg"

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 300, 60, 56, 236
WEIGHTS, INPUTS, CHANNELS = "#2a6f97", "#f4a259", "#c9d6df"
HIGHEST = 16  # bits, at full height


def draw(result: dict[str, Any]) -> str:
    """Bits of weights and inputs, and the part of the channels that is left, layer by layer."""
    title = f"{result['accuracy']:.2f}% accuracy at {result['relative_bops']:.2f}% of the bit operations"
    size = f"weights: {result['weight_bytes'] / 1e6:.1f} MB of {result['float_weight_bytes'] / 1e6:.1f} MB"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 20, f"VGG-7 on CIFAR-10: {title}", size=15),
        text(LEFT, 40, size),
    ]
    for x, color, label in (
        (360, CHANNELS, "channels left"),
        (480, WEIGHTS, "weight bits"),
        (590, INPUTS, "input bits"),
    ):
        parts += [bar(x, 40, 10, 10, color), text(x + 15, 40, label)]
    for bits in (2, 4, 8, 16):
        y = height_of(of_bits(bits))
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{bits} bits", anchor="end"))
    slot = (WIDTH - LEFT - 20) / len(result["layers"])
    for index, layer in enumerate(result["layers"]):
        parts += draw_layer(LEFT + index * slot, layer)
    labels = ("channels", "share")
    parts += [text(LEFT - 8, BOTTOM + 34 + 16 * row, label, anchor="end") for row, label in enumerate(labels)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_pareto() -> str:
    """Accuracy over cost, on CIFAR-10."""
    (experiment,) = (one for one in EXPERIMENTS_SHOWN if one.recipe == "cifar10-vgg7")
    return pareto(experiment)[0].svg() + "\n"


def draw_layer(x: float, layer: dict[str, Any]) -> list[str]:
    """The three bars of a layer, with its name, its channels and its share of the bit operations under them."""
    left = layer["kept_out"] / layer["channels_out"]
    bars = ((CHANNELS, left), (WEIGHTS, of_bits(layer["weight_bits"])), (INPUTS, of_bits(layer["activation_bits"])))
    told = (layer["name"], f"{layer['kept_out']} of {layer['channels_out']}", f"{layer['share']:.1f}%")
    return [
        *(bar(x + 8 + 20 * n, BOTTOM, 16, BOTTOM - height_of(part), color) for n, (color, part) in enumerate(bars)),
        *(text(x + 36, BOTTOM + 18 + 16 * row, line, anchor="middle") for row, line in enumerate(told)),
    ]


def of_bits(bits: int) -> float:
    """The height of a width as a part of the full height, on a logarithmic scale."""
    return math.log2(bits) / math.log2(HIGHEST)


def height_of(part: float) -> float:
    """Where a part of the full height ends, from the top of the picture."""
    return BOTTOM - part * (BOTTOM - TOP - 8)


def bar(x: float, bottom: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{bottom - height:.1f}" width="{width}" height="{height:.1f}" fill="{color}"/>'


def text(x: float, y: float, content: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{content}</text>'


def main() -> None:
    PICTURE.write_text(draw(json.loads(RESULT.read_text())))
    PARETO.write_text(draw_pareto())


if __name__ == "__main__":
    main()
