"""The picture of the network: a row for every layer and addition from the input to the output, with the ways between.

A row opens to show the tensors of its layer. `network_graph` finds the ways; this file draws the strip beside a row,
which stretches to the height of the row, and gathers what a row says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bayesbits.cost import LayerCost
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.tensor_statistics import Histogram, LayerError
from bayesbits.records.topology import Layer, Topology
from bayesbits.report.chart import Chart
from bayesbits.report.gate_figures import bit_class, gate_chart
from bayesbits.report.network_graph import ADDITION, INPUT, LAYER, Row, network_rows
from bayesbits.report.run_data import Run
from bayesbits.report.svg import EMPTY, element
from bayesbits.utils.short_names import shorten_names

NAME_LENGTH = 30
_MANY_LAYERS = 10
_LANE, _MAIN = 14, 9.0  # the distance of lanes, and where the main one lies, in pixels


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
    layer: Layer | None = None
    cost: LayerCost | None = None
    error: LayerError | None = None
    deployed: LayerError | None = None
    histograms: Sequence[Histogram] = ()
    gates: Sequence[tuple[str, Chart]] = ()

    @property
    def words(self) -> str:
        """What kind of layer it is, such as "conv 3 x 3, 64 to 128"; empty where it is none."""
        if self.layer is None:
            return ""
        layer = self.layer
        inputs, outputs = len(layer.in_channels), len(layer.out_channels)
        if layer.kind == "linear":
            return f"linear, {inputs} to {outputs}"
        size = " x ".join(map(str, layer.weight_shape[2:]))
        kind = {"conv": "conv", "conv_transpose": "transposed conv"}.get(layer.kind, layer.kind)
        if layer.depthwise:
            return f"depthwise {kind} {size}, {outputs} channels"
        groups = f" in {layer.groups} groups" if layer.groups > 1 else ""
        return f"{kind} {size}, {inputs} to {outputs}{groups}"

    @property
    def kept(self) -> tuple[int, int] | None:
        """Output channels that are kept, and of how many."""
        if self.layer is None or self.cost is None:
            return None
        return self.cost.kept_out, len(self.layer.out_channels)


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


def gutter_width(rows: Sequence[Row]) -> float:
    """The width of the strip beside the rows, in pixels."""
    return _MAIN + _LANE * max((lane for row in rows for lane in (*row.begins, *row.passing)), default=0) + 9


def _row(run: Run, topology: Topology, row: Row, short: str, name: str, width: float) -> PictureRow:
    gutters = _gutter(row, width), _gutter_below(row, width)
    plan = {} if run.plan is None else run.plan.bits
    widest = widest_bits(run)
    if row.node.kind == ADDITION:
        bits = [Bits(one, "operand", plan[one], widest) for one in row.node.operands if one in plan]
        return PictureRow(row, name, short, *gutters, bits, histograms=_histograms(run, bits), gates=_gates(run, bits))
    if row.node.kind != LAYER:
        inputs = [one.name for one in topology.activations if one.network_input] if row.node.kind == INPUT else []
        bits = [Bits(one, "input", plan[one], widest) for one in inputs if one in plan]
        return PictureRow(row, name, short, *gutters, bits)
    layer = topology.layer(row.node.name)
    activation = topology.activation(layer.activation)
    names = {one.name for one in topology.layers}  # products of two activations may read it, too
    first = next(name for name in activation.consumers if name in names)
    bits = []
    if layer.parameter in plan:
        bits.append(Bits(layer.parameter, "weight", plan[layer.parameter], widest))
    if layer.activation in plan:
        shared = first if first != layer.name else ""
        bits.append(Bits(layer.activation, "input", plan[layer.activation], widest, shared))
    emitted = [f"{layer.name}.output"] + ([f"{layer.norm}.output"] if layer.norm else [])
    bits += [
        Bits(one, "operand", plan[one], widest) for one in emitted if one in plan and one in topology.emitted_tensors
    ]
    own = [one for one in bits if not one.shared]
    cost = next((one for one in run.cost.layers if one.name == layer.name), None) if run.cost is not None else None
    errors, deployed = ((), ()) if run.statistics is None else (run.statistics.layers, run.statistics.deployed)
    return PictureRow(
        row, name, short, *gutters, bits, layer, cost, next((one for one in errors if one.name == layer.name), None),
        next((one for one in deployed if one.name == layer.name), None), _histograms(run, own), _gates(run, own),
    )  # fmt: skip


def _histograms(run: Run, tensors: Sequence[Bits]) -> list[Histogram]:
    found = {} if run.statistics is None else {one.name: one for one in run.statistics.tensors}
    return [found[one.tensor] for one in tensors if one.tensor in found]


def _gates(run: Run, tensors: Sequence[Bits]) -> list[tuple[str, Chart]]:
    points = next((stage.gates for stage in run.curves.stages if stage.gates), ())
    charts = [(one.tensor, gate_chart(points, one.tensor, one.role)) for one in tensors]
    return [(name, chart) for name, chart in charts if chart is not None]


def _x(lane: int) -> float:
    return _MAIN + _LANE * lane


def _gutter(row: Row, width: float) -> Markup:
    """The ways beside a row, in a box of height 100 that stretches; a node lies at half of it."""
    main = _x(0)
    ways = []
    if row.from_above:
        ways.append(f"M{main:g} 0V50")
    if row.to_below:
        ways.append(f"M{main:g} 50V100")
    ways += [f"M{_x(lane):g} 0V100" for lane in row.passing]
    ways += [f"M{_x(lane):g} 0C{_x(lane):g} 40 {main:g} 20 {main:g} 50" for lane in row.joins]
    ways += [f"M{main:g} 50C{main:g} 80 {_x(lane):g} 60 {_x(lane):g} 100" for lane in row.begins]
    return _strip(width, "".join(ways))


def _gutter_below(row: Row, width: float) -> Markup:
    """The ways beside the tensors of a row that is open."""
    lanes = [*([0] if row.to_below else []), *row.below]
    return _strip(width, "".join(f"M{_x(lane):g} 0V100" for lane in lanes))


def _strip(width: float, ways: str) -> Markup:
    path = element("path", d=ways) if ways else EMPTY
    return element(
        "svg", path, viewBox=f"0 0 {width:g} 100", preserveAspectRatio="none", class_="ways", aria_hidden="true",
        width=width,
    )  # fmt: skip


def skyline(rows: Sequence[PictureRow]) -> Markup | None:
    """All layers side by side: the bits of the weight upward, those of the input downward, of the widest width.

    None for a few layers, of which the rows say it all.
    """
    layers = [row for row in rows if row.layer is not None]
    if len(layers) < _MANY_LAYERS:
        return None
    bars = []
    slot = 1000 / max(1, len(layers))
    for place, row in enumerate(layers):
        own = {one.role: one for one in row.bits}
        words = [row.name, *(f"{one.role} {one.text}" for one in row.bits)]
        if row.kept is not None and row.kept[0] < row.kept[1]:
            words.append(f"{row.kept[0]} of {row.kept[1]} channels kept")
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
