"""What results look like: layers with their bits and channels, and before and after."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bayesbits.recipes import Result
from bayesbits.report.formatting import format_bytes, format_count, format_part, format_reduction

_LEAST_NAME = 12
_GAP = "..."

Form = Callable[[Sequence[str]], Table]


def layer_table(layers: Iterable[Mapping[str, Any]], console: Console) -> Table:
    """Bits and channels of every layer (see `bayesbits.recipes.result.layer_rows`), as wide as the console allows."""
    rows = list(layers)
    return fitted(console, [row["name"] for row in rows], lambda names: _wide(names, rows), lambda n: _narrow(n, rows))


def _wide(names: Sequence[str], layers: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("weight bits", "input bits", "channels in", "channels out", "MACs", "share of BOPs", "size")
    table = _layer_table(heads)
    for name, layer in zip(names, layers, strict=True):
        table.add_row(
            name,
            str(layer["weight_bits"]),
            str(layer["activation_bits"]),
            format_part(layer["kept_in"], layer["channels_in"]),
            format_part(layer["kept_out"], layer["channels_out"]),
            f"{layer['macs']:,}",
            f"{layer['share']:.1f}%",
            format_bytes(layer["weight_bytes"]),
        )
    return table


def _narrow(names: Sequence[str], layers: Sequence[Mapping[str, Any]]) -> Table:
    """The same in fewer characters."""
    table = _layer_table(("bits w/a", "in", "out", "MACs", "BOPs", "size"))
    for name, layer in zip(names, layers, strict=True):
        table.add_row(
            name,
            f"{layer['weight_bits']}/{layer['activation_bits']}",
            format_part(layer["kept_in"], layer["channels_in"], "/"),
            format_part(layer["kept_out"], layer["channels_out"], "/"),
            format_count(layer["macs"]),
            f"{layer['share']:.1f}%",
            format_bytes(layer["weight_bytes"]),
        )
    return table


def _layer_table(heads: Sequence[str]) -> Table:
    table = Table(title="Bits and channels", title_justify="left")
    table.add_column("layer", overflow="fold")
    for heading in heads:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def fitted(console: Console, names: Sequence[str], *forms: Form) -> Table:
    """A table of named rows that fits the console: the first form that does or, with shortened names, the last."""
    for form in forms:
        room = console.width - _width(console, form, len(names))
        if room >= max(map(len, names), default=0):
            return form(names)
    return forms[-1](shortened(names, max(room, _LEAST_NAME)))


def _width(console: Console, form: Form, rows: int) -> int:
    """How many characters a table has beside its names."""
    name = "n" * console.width  # wider than any heading, so that the column is as wide as the name
    table = form([name] * rows)
    table.title = None
    return console.measure(table, options=console.options.update(max_width=10 * console.width)).maximum - len(name)


def shortened(names: Sequence[str], room: int) -> list[str]:
    """Names that fit and stay apart: cut in the middle, or with initials in front; as they are where neither helps."""
    for shorten in (_without_middle, _with_initials):
        short = [name if len(name) <= room else shorten(name, room) for name in names]
        if len(set(short)) == len(set(names)) and max(map(len, short)) <= room:
            return short
    return list(names)


def _without_middle(name: str, room: int) -> str:
    """More is kept of the end, which tells most layers apart."""
    head = (room - len(_GAP)) // 3
    return name[:head] + _GAP + name[head + len(_GAP) - room :]


def _with_initials(name: str, room: int) -> str:
    """As many parts in front as necessary become their first letter; numbers stay."""
    parts = name.split(".")
    for place, part in enumerate(parts[:-1]):
        if len(".".join(parts)) > room and not part.isdigit():
            parts[place] = part[:1]
    return ".".join(parts)


def result_table(result: Result) -> Table:
    """Metrics and cost before and after."""
    table = Table("", title="Before and after", title_justify="left")
    for heading in ("float", "compressed", ""):
        table.add_column(heading, justify="right")
    for score in result.scores:
        table.add_row(f"test {score.name}", score.float_text or "-", score.text, score.change or score.direction)
    table.add_row("relative BOPs", "100%", f"{result.relative_bops:.3g}%", format_reduction(100, result.relative_bops, "fewer"))
    table.add_row(
        "weights", format_bytes(result.float_weight_bytes), format_bytes(result.weight_bytes),
        format_reduction(result.float_weight_bytes, result.weight_bytes, "smaller"),
    )  # fmt: skip
    return table


def file_table(folder: Path) -> Table:
    """What lies in a folder."""
    table = Table("file", title=f"Written to {folder}", title_justify="left")
    table.add_column("size", justify="right")
    for path in sorted(folder.iterdir()):
        table.add_row(path.name + "/" * path.is_dir(), format_bytes(_bytes(path)))
    return table


def _bytes(path: Path) -> int:
    """Of a file, or of all files in a folder."""
    return sum(map(_bytes, path.iterdir())) if path.is_dir() else path.stat().st_size
