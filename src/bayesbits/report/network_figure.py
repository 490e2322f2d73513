"""The picture of the network: a row for everything that computes, from the input to the output, with the ways between.

A row opens to show its tensors. `network_graph` finds the ways, `network_ways` draws them beside the rows,
`network_words` says what a row is and costs, and this file gathers all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.tensor_statistics import Histogram, LayerError
from bayesbits.records.topology import Topology
from bayesbits.report.chart import Chart
from bayesbits.report.gate_figures import bit_class, gate_chart
from bayesbits.report.network_graph import ADDITION, INPUT, LAYER, PRODUCT, TABLE, Row, network_rows
from bayesbits.report.network_ways import gutter, gutter_below, gutter_width
from bayesbits.report.network_words import Description, describe
from bayesbits.report.run_data import Run
from bayesbits.report.svg import element
from bayesbits.utils.short_names import shorten_names

NAME_LENGTH = 30
_MANY_LAYERS = 10


@dataclass(frozen=True)
class Bits:
    """The width of one tensor as it is drawn."""

    tensor: str
    role: str
    """"weight", "input" or "operand"."""
    bits: int
    widest: int
    """The widest width that the spec allows."""
    shared: str = ""
    """The layer at which the tensor is shown, where several layers read it."""

    @property
    def text(self) -> str:
        """The width in words."""
        return "float" if self.bits == FLOAT_BITS else f"{self.bits} bits"

    @property
    def percent(self) -> float:
        """The length of its bar."""
        return min(100.0, 100.0 * self.bits / self.widest)

    @property
    def style(self) -> str:
        """The class of its color."""
        return bit_class(self.bits)


@dataclass(frozen=True)
class PictureRow:
    """What a row of the picture says."""

    row: Row
    name: str
    short: str
    gutter: Markup
    gutter_below: Markup
    bits: Sequence[Bits]
    about: Description
    error: LayerError | None = None
    deployed: LayerError | None = None
    histograms: Sequence[Histogram] = ()
    gates: Sequence[tuple[str, Chart]] = ()

    @property
    def opens(self) -> bool:
        """Whether there is more to see than the row itself."""
        return bool(self.about.costs or self.error or self.histograms or self.gates)

    @property
    def is_layer(self) -> bool:
        """Whether it is a layer."""
        return self.row.node.kind == LAYER


def widest_bits(run: Run) -> int:
    """The widest width that the spec allows a tensor that is quantized; that of the plan where there is no recipe."""
    chosen = [bits for bits in run.plan.bits.values() if bits < FLOAT_BITS] if run.plan is not None else []
    allowed = list(run.recipe.spec.bits) if run.recipe is not None else []
    return max([*chosen, *allowed], default=FLOAT_BITS)


def picture(run: Run, topology: Topology) -> list[PictureRow]:
    """The rows of the picture, from the input to the output; without a plan only the names and ways."""
    rows = network_rows(topology)
    width = gutter_width(rows)
    names = [row.node.name or row.node.kind for row in rows]
    short = dict(zip(names, shorten_names(names, NAME_LENGTH, "…"), strict=True))
    return [_row(run, topology, row, short[name], name, width) for row, name in zip(rows, names, strict=True)]


def _row(run: Run, topology: Topology, row: Row, short: str, name: str, width: float) -> PictureRow:
    """A row with the bits, the figures and the errors of its tensors."""
    bits = _bits(run, topology, row)
    own = [one for one in bits if not one.shared] if row.node.kind != INPUT else []
    errors, deployed = ((), ()) if run.statistics is None else (run.statistics.layers, run.statistics.deployed)
    return PictureRow(
        row, name, short, gutter(row, width), gutter_below(row, width), bits, describe(topology, row.node, run.cost),
        error=next((one for one in errors if one.name == row.node.name), None),
        deployed=next((one for one in deployed if one.name == row.node.name), None),
        histograms=_histograms(run, own), gates=_gates(run, own),
    )  # fmt: skip


def _bits(run: Run, topology: Topology, row: Row) -> list[Bits]:
    """The widths of the tensors of a row, as far as the plan has them."""
    kind, name = row.node.kind, row.node.name
    tensors: list[tuple[str, str]] = []
    shared = {}
    if kind == ADDITION:
        tensors = [(one, "operand") for one in row.node.operands]
    elif kind == INPUT:
        tensors = [(one.name, "input") for one in topology.activations if one.network_input]
    elif kind == TABLE:
        tensors = [(one.parameter, "weight") for one in topology.tables if one.name == name]
    elif kind == PRODUCT:
        tensors = [(side, "input") for one in topology.products if one.name == name for side in (one.left, one.right)]
    elif kind == LAYER:
        layer = topology.layer(name)
        names = {one.name for one in topology.layers}  # products of two activations may read it, too
        first = next(one for one in topology.activation(layer.activation).consumers if one in names)
        shared = {layer.activation: first if first != name else ""}
        emitted = [f"{name}.output"] + ([f"{layer.norm}.output"] if layer.norm else [])
        tensors = [(layer.parameter, "weight"), (layer.activation, "input")]
        tensors += [(one, "operand") for one in emitted if one in topology.emitted_tensors]
    plan, widest = {} if run.plan is None else run.plan.bits, widest_bits(run)
    return [Bits(one, role, plan[one], widest, shared.get(one, "")) for one, role in tensors if one in plan]


def _histograms(run: Run, tensors: Sequence[Bits]) -> list[Histogram]:
    found = {} if run.statistics is None else {one.name: one for one in run.statistics.tensors}
    return [found[one.tensor] for one in tensors if one.tensor in found]


def _gates(run: Run, tensors: Sequence[Bits]) -> list[tuple[str, Chart]]:
    points = next((stage.gates for stage in run.curves.stages if stage.gates), ())
    charts = [(one.tensor, gate_chart(points, one.tensor)) for one in tensors]
    return [(name, chart) for name, chart in charts if chart is not None]


def skyline(rows: Sequence[PictureRow], least: int = _MANY_LAYERS) -> Markup | None:
    """All layers side by side: the bits of the weight upward, those of the input downward, of the widest width.

    None for fewer layers than `least`, of which the rows say it all.
    """
    layers = [row for row in rows if row.is_layer]
    if len(layers) < least:
        return None
    bars = []
    slot = 1000 / max(1, len(layers))
    for place, row in enumerate(layers):
        own = {one.role: one for one in row.bits}
        words = [row.name, *(f"{one.role} {one.text}" for one in row.bits)]
        kept = row.about.kept
        if kept is not None and kept[0] < kept[1]:
            words.append(f"{kept[0]} of {kept[1]} channels kept")
        parts = [element("rect", x=place * slot, y=0, width=slot, height=200, class_="slot")]
        for role, top in (("weight", True), ("input", False)):
            if role in own:
                height = max(3.0, own[role].percent)
                parts.append(
                    element("rect", x=place * slot + 0.12 * slot, width=0.76 * slot, height=height * 0.96,
                            y=100 - height * 0.96 if top else 100, class_=role)
                )  # fmt: skip
        bars.append(element("g", *parts, data_tip="\n".join(words)))
    return element(
        "svg", *bars, element("line", x1=0, x2=1000, y1=100, y2=100, class_="middle"), viewBox="0 0 1000 200",
        preserveAspectRatio="none", class_="skyline", role="img",
        aria_label=f"Bits of {len(layers)} layers from the input to the output; the list below has the numbers",
    )  # fmt: skip
