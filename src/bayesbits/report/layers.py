"""The sections about layers: what became of each, and what could not be touched."""

from __future__ import annotations

from bayesbits.cost import Cost
from bayesbits.records.topology import Topology
from bayesbits.report.elements import code, paragraph, section, table
from bayesbits.report.figures import FLOAT_BITS, LayerBars, layer_figures
from bayesbits.report.markup import Markup, join, tag
from bayesbits.report.numbers import part_of
from bayesbits.report.reading import Run

_REST = "(left in float)"


def layer_section(run: Run) -> Markup:
    """Figure and table of the layers, and the widths of residual operands."""
    figures = [tag("figure", tag("div", figure, class_="wide")) for figure in layer_figures(layer_bars(run))]
    return section("Layer by layer", *figures, _layer_table(run), _operand_table(run))


def layer_bars(run: Run) -> list[LayerBars]:
    """What is drawn: every layer, and whatever else multiplies."""
    bars = []
    for entry in run.cost.layers:
        layer = run.topology.layer(entry.name)
        channels_in, channels_out = len(layer.in_channels), len(layer.out_channels)
        bits = (entry.weight_bits, entry.activation_bits)
        bars.append(LayerBars(entry.name, *bits, entry.kept_in, channels_in, entry.kept_out, channels_out, entry.share))
    if run.cost.unsupported_macs:
        bars.append(LayerBars(_REST, FLOAT_BITS, FLOAT_BITS, 0, 0, 0, 0, _rest_share(run.cost)))
    return bars


def kept_section(topology: Topology) -> Markup:
    """Channels that have to stay and parts that are left in float, each with the reason."""
    groups = [
        (code(group.name), group.reason, f"{group.size:,}") for group in topology.groups if group.reason is not None
    ]
    rest = [(code(entry.name), entry.what, entry.reason, f"{entry.macs:,}") for entry in topology.unsupported]
    parts = []
    if not topology.traced:
        parts.append(paragraph("torch.export could not read this network; its layers were found by a run with hooks."))
    if groups:
        caption = "Channels that cannot be removed exactly; they were quantized, but not pruned."
        parts.append(table(caption, ("made by", "reason", "channels"), groups, texts=2))
    else:
        parts.append(paragraph("All channels can be removed."))
    if rest:
        caption = f"Parts that are left in float, counted at {FLOAT_BITS} x {FLOAT_BITS} bits."
        parts.append(table(caption, ("where", "what", "reason", "MACs"), rest, texts=3))
    else:
        parts.append(paragraph("Nothing that multiplies was left in float."))
    return section("What could not be touched", *parts)


def _layer_table(run: Run) -> Markup:
    heads = ("layer", "weight bits", "input bits", "channels in", "channels out", "MACs", "BOPs", "share", "bytes")
    cost = run.cost
    rows: list[tuple[str, ...]] = []
    for entry in cost.layers:
        layer = run.topology.layer(entry.name)
        rows.append(
            (code(entry.name), str(entry.weight_bits), str(entry.activation_bits))
            + (part_of(entry.kept_in, len(layer.in_channels)), part_of(entry.kept_out, len(layer.out_channels)))
            + (f"{entry.macs:,}", f"{entry.bops:,}", f"{entry.share:.1f}%", f"{entry.weight_bytes:,}")
        )
    other_bytes = cost.weight_bytes - sum(entry.weight_bytes for entry in cost.layers)
    if cost.unsupported_macs or other_bytes:
        other_bops = cost.bops - sum(entry.bops for entry in cost.layers)
        bits = (str(FLOAT_BITS), str(FLOAT_BITS))
        numbers = (f"{cost.unsupported_macs:,}", f"{other_bops:,}", f"{_rest_share(cost):.1f}%", f"{other_bytes:,}")
        rows.append((_REST, *bits, "", "", *numbers))
    total = ("total", "", "", "", "", f"{cost.macs:,}", f"{cost.bops:,}", "100%", f"{cost.weight_bytes:,}")
    return table("Every layer of the compressed network, in the order in which they run.", heads, rows, foot=total)


def _operand_table(run: Run) -> Markup:
    rows = [(code(name), str(run.plan.bits[name])) for name in run.topology.operand_tensors if name in run.plan.bits]
    return table("Operands of residual additions.", ("tensor", "bits"), rows) if rows else join([])


def _rest_share(cost: Cost) -> float:
    return abs(100 - sum(entry.share for entry in cost.layers))  # never below zero by rounding
