"""What results look like: layers with their bits and channels, and before and after."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from bayesbits.recipes import Result
from bayesbits.report.numbers import part_of, size, times


def layer_table(layers: Iterable[Mapping[str, Any]]) -> Table:
    """Bits and channels of every layer; see `bayesbits.recipes.result.layer_rows`."""
    table = Table("layer", title="Bits and channels", title_justify="left")
    for heading in ("weight bits", "input bits", "channels in", "channels out", "MACs", "share of BOPs", "size"):
        table.add_column(heading, justify="right")
    for layer in layers:
        table.add_row(
            layer["name"],
            str(layer["weight_bits"]),
            str(layer["activation_bits"]),
            part_of(layer["kept_in"], layer["channels_in"]),
            part_of(layer["kept_out"], layer["channels_out"]),
            f"{layer['macs']:,}",
            f"{layer['share']:.1f}%",
            size(layer["weight_bytes"]),
        )
    return table


def result_table(result: Result) -> Table:
    """Accuracy and cost before and after."""
    table = Table("", title="Before and after", title_justify="left")
    for heading in ("float", "compressed", ""):
        table.add_column(heading, justify="right")
    before = None if result.float_accuracy is None else f"{result.float_accuracy:.2f}%"
    gain = None if result.float_accuracy is None else f"{result.accuracy - result.float_accuracy:+.2f} points"
    table.add_row("test accuracy", before or "-", f"{result.accuracy:.2f}%", gain or "")
    table.add_row("relative BOPs", "100%", f"{result.relative_bops:.3g}%", times(100, result.relative_bops, "fewer"))
    table.add_row(
        "weights", size(result.float_weight_bytes), size(result.weight_bytes),
        times(result.float_weight_bytes, result.weight_bytes, "smaller"),
    )  # fmt: skip
    return table


def file_table(folder: Path) -> Table:
    """What lies in a folder."""
    table = Table("file", title=f"Written to {folder}", title_justify="left")
    table.add_column("size", justify="right")
    for path in sorted(folder.iterdir()):
        table.add_row(path.name, size(path.stat().st_size))
    return table
