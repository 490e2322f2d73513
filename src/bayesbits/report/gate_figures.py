"""The gates over the run: a strip for every tensor, colored by its bits, and a chart of its gates' probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bayesbits.report.chart import STYLES, Chart, Series
from bayesbits.report.svg import element
from bayesbits.report.training_curves import GatePoint

_WIDTHS = (0, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Strip:
    """The bits of one tensor over the search."""

    name: str
    bits: int
    """At the end."""
    svg: Markup


def bit_class(bits: int) -> str:
    """The class of a width's color: that of the next of the usual widths."""
    return f"b{next(width for width in _WIDTHS if bits <= width)}"


def gate_strips(points: Sequence[GatePoint]) -> list[Strip]:
    """A strip for every tensor whose width is learned; equal neighbors are one rectangle."""
    if not points:
        return []
    end = points[-1].epoch or 1.0
    strips = []
    for name, last in points[-1].bits.items():
        runs: list[tuple[float, float, int]] = []
        begin = 0.0
        for point in points:
            bits = point.bits.get(name, last)
            if runs and runs[-1][2] == bits:
                runs[-1] = (runs[-1][0], point.epoch, bits)
            else:
                runs.append((begin, point.epoch, bits))
            begin = point.epoch
        rectangles = [
            element(
                "rect", x=100 * start / end, y=0, width=100 * (stop - start) / end, height=1, class_=bit_class(bits)
            )
            for start, stop, bits in runs
        ]
        words = ", ".join(f"{bits} bits until epoch {stop:.3g}" for _, stop, bits in runs[:-1])
        words = f"{words}{', then ' if words else ''}{runs[-1][2]} bits"
        strips.append(
            Strip(
                name, last,
                element("svg", *rectangles, viewBox="0 0 100 1", preserveAspectRatio="none", class_="strip",
                        role="img", aria_label=f"{name}: {words}", data_tip=f"{name}\n{words}"),
            )
        )  # fmt: skip
    return strips


def gate_chart(points: Sequence[GatePoint], tensor: str) -> Chart | None:
    """P(z > 0) of the gates of one tensor over the search; None where it was not written."""
    series = [
        Series(
            f"{bits} bits",
            [(point.epoch, own[bits]) for point in points if bits in (own := point.probabilities.get(tensor, {}))],
            place % STYLES + 1,
        )
        for place, bits in enumerate(points[-1].probabilities.get(tensor, {}) if points else ())
    ]
    if not series:
        return None
    role = tensor.rpartition(".")[2]  # such as "weight" or "input"
    return Chart(f"Probability that a gate is open: {role}", "epochs of the search", series, whole=True)
