"""The table of all layers, products of two activations and tables of weights, whose rows can be sorted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayesbits.cost import LayerCost
from bayesbits.cost.cost import ProductCost, TableCost
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import Topology
from bayesbits.report.formatting import format_part
from bayesbits.report.network_graph import running_numbers
from bayesbits.report.run_data import Run

Errors = Mapping[str, float | None]


@dataclass(frozen=True)
class Cell:
    """A cell of a table that can be sorted."""

    text: str
    value: float | str
    """What is compared."""


_NOTHING = Cell("", -1)


def parts(layers: int, products: int, tables: int) -> str:
    """What a network is made of, such as "6 layers, 2 products of two activations and 2 tables"."""
    counts = (
        ("layer", "layers", layers),
        ("product of two activations", "products of two activations", products),
        ("table", "tables", tables),
    )
    words = [f"{number} {one if number == 1 else several}" for one, several, number in counts if number]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def layers(run: Run) -> list[list[Cell]]:
    """Position, name, weight bits, input bits, channels in and out, MACs, share of BOPs, bytes and error by layer.

    Products of two activations are where they run, with the widths of their operands, and tables follow the layers.
    """
    if run.cost is None or run.topology is None:
        return []
    numbers = running_numbers(run.topology)
    errors = {} if run.statistics is None else {error.name: error.alone for error in run.statistics.layers}
    entries: tuple[LayerCost | ProductCost, ...] = (*run.cost.layers, *run.cost.products)
    rows = [
        _layer_row(numbers[entry.name], entry, run.topology, errors)
        if isinstance(entry, LayerCost)
        else _product_row(numbers[entry.name], entry, errors)
        for entry in sorted(entries, key=lambda one: numbers[one.name])
    ]
    return rows + [_table_row(place, table) for place, table in enumerate(run.cost.tables, start=len(rows) + 1)]


def _layer_row(place: int, entry: LayerCost, topology: Topology, errors: Errors) -> list[Cell]:
    layer = topology.layer(entry.name)
    return [
        Cell(str(place), place),
        Cell(entry.name, entry.name),
        Cell(bits_word(entry.weight_bits), entry.weight_bits),
        Cell(bits_word(entry.activation_bits), entry.activation_bits),
        Cell(format_part(entry.kept_in, len(layer.in_channels)), entry.kept_in),
        Cell(format_part(entry.kept_out, len(layer.out_channels)), entry.kept_out),
        Cell(f"{entry.macs:,}", entry.macs),
        Cell(f"{entry.share:.1f}%", entry.share),
        Cell(f"{entry.weight_bytes:,}", entry.weight_bytes),
        _error_cell(entry.name, errors),
    ]


def _product_row(place: int, entry: ProductCost, errors: Errors) -> list[Cell]:
    """The row of a product of two activations: the widths of both operands, and neither channels nor bytes."""
    return [
        Cell(str(place), place),
        Cell(entry.name, entry.name),
        Cell(bits_word(entry.left_bits), entry.left_bits),
        Cell(bits_word(entry.right_bits), entry.right_bits),
        *[_NOTHING] * 2,
        Cell(f"{entry.macs:,}", entry.macs),
        Cell(f"{entry.share:.1f}%", entry.share),
        _NOTHING,
        _error_cell(entry.name, errors),
    ]


def _table_row(place: int, table: TableCost) -> list[Cell]:
    """The row of a table of embeddings, which has bits and bytes alone, or of a weight of a recurrent layer."""
    return [
        Cell(str(place), place),
        Cell(table.name, table.name),
        Cell(bits_word(table.bits), table.bits),
        Cell("float", FLOAT_BITS) if table.macs else _NOTHING,
        *[_NOTHING] * 2,
        Cell(f"{table.macs:,}", table.macs),
        Cell(f"{table.share:.1f}%", table.share),
        Cell(f"{table.weight_bytes:,}", table.weight_bytes),
        _error_cell(table.name, {}),
    ]


def _error_cell(name: str, errors: Errors) -> Cell:
    error = errors.get(name)
    return Cell("" if error is None else f"{error:.1f}", 1e9 if error is None else error)


def bits_word(bits: int) -> str:
    """A width as tables have it."""
    return "float" if bits == FLOAT_BITS else str(bits)
