"""Tables of results for the terminal: layers with their bits and channels, metrics and costs, and files.

A table of layers fits the width of the console: it has a wide and a narrow form, and long names are shortened.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bayesbits.recipes import Result
from bayesbits.report.formatting import format_bytes, format_count, format_part, format_reduction
from bayesbits.utils.short_names import shorten_names

_SHORTEST_NAME = 12

TableFunction = Callable[[Sequence[str]], Table]


def layer_table(layers: Iterable[Mapping[str, Any]], console: Console) -> Table:
    """Bits and channels of every layer; the rows are those of `bayesbits.recipes.result.layer_rows`."""
    rows = list(layers)
    return fit_table(console, [row["name"] for row in rows], lambda n: _wide(n, rows), lambda n: _narrow(n, rows))


def _wide(names: Sequence[str], layers: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("weight bits", "input bits", "channels in", "channels out", "MACs", "share of BOPs", "size")
    table = _layer_table(heads)
    for name, layer in zip(names, layers, strict=True):
        table.add_row(
            name,
            str(layer["weight_bits"]),
            _input_bits(layer),
            _part(layer["kept_in"], layer["channels_in"]),
            _part(layer["kept_out"], layer["channels_out"]),
            f"{layer['macs']:,}",
            f"{layer['share']:.1f}%",
            _size(layer),
        )
    return table


def _narrow(names: Sequence[str], layers: Sequence[Mapping[str, Any]]) -> Table:
    """The same with fewer characters, for terminals of 80 columns."""
    table = _layer_table(("bits w/a", "in", "out", "MACs", "BOPs", "size"))
    for name, layer in zip(names, layers, strict=True):
        table.add_row(
            name,
            f"{layer['weight_bits']}/{_input_bits(layer)}".rstrip("/"),
            _part(layer["kept_in"], layer["channels_in"], "/"),
            _part(layer["kept_out"], layer["channels_out"], "/"),
            format_count(layer["macs"]),
            f"{layer['share']:.1f}%",
            _size(layer),
        )
    return table


def _input_bits(layer: Mapping[str, Any]) -> str:
    """The width of the input; nothing for a table of embeddings, whose input is indices."""
    return "" if layer["activation_bits"] is None else str(layer["activation_bits"])


def _part(kept: int, channels: int, *separator: str) -> str:
    """How many channels are kept; nothing for products of two activations and tables, which have none of their own."""
    return format_part(kept, channels, *separator) if channels else ""


def _size(layer: Mapping[str, Any]) -> str:
    return format_bytes(layer["weight_bytes"]) if layer["channels_out"] or layer["weight_bytes"] else ""


def _layer_table(heads: Sequence[str]) -> Table:
    table = Table(title="Bits and channels", title_justify="left")
    table.add_column("layer", overflow="fold")
    for heading in heads:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def fit_table(console: Console, names: Sequence[str], *forms: TableFunction) -> Table:
    """A table that fits the console: the first form that does, or the last one with shortened names.

    A form makes a table of the names of its rows.
    """
    for form in forms:
        space = console.width - _width_without_names(console, form, len(names))
        if space >= max(map(len, names), default=0):
            return form(names)
    return forms[-1](shorten_names(names, max(space, _SHORTEST_NAME)))


def _width_without_names(console: Console, form: TableFunction, rows: int) -> int:
    name = "n" * console.width  # wider than any heading, so that it determines the width of its column
    table = form([name] * rows)
    table.title = None
    return console.measure(table, options=console.options.update(max_width=10 * console.width)).maximum - len(name)


def result_table(result: Result) -> Table:
    """Metrics and cost of the float and of the compressed network."""
    table = Table("", title="Before and after", title_justify="left")
    for heading in ("float", "compressed", ""):
        table.add_column(heading, justify="right")
    for score in result.scores:
        table.add_row(f"test {score.name}", score.float_text or "-", score.text, score.change or score.direction)
    table.add_row(
        "relative BOPs", "100%", f"{result.relative_bops:.3g}%", format_reduction(100, result.relative_bops, "fewer")
    )
    table.add_row(
        "weights", format_bytes(result.float_weight_bytes), format_bytes(result.weight_bytes),
        format_reduction(result.float_weight_bytes, result.weight_bytes, "smaller"),
    )  # fmt: skip
    if result.latency_ms is not None:
        measured = result.measured_latency_ms
        words = "predicted" if measured is None else f"predicted; {measured:.3g} ms measured"
        table.add_row("latency", "-", f"{result.latency_ms:.3g} ms", words)
    return table


def file_table(folder: Path) -> Table:
    """The files of a folder with their sizes."""
    table = Table("file", title=f"Written to {folder}", title_justify="left")
    table.add_column("size", justify="right")
    for path in sorted(folder.iterdir()):
        table.add_row(path.name + "/" * path.is_dir(), format_bytes(_bytes(path)))
    return table


def _bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    return sum(map(_bytes, path.iterdir())) if path.is_dir() else path.stat().st_size
