"""Tables: one form for those that are printed to a console and those that `str` returns as plain text."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported where a table is made: most programs that import bayesbits never print one
    from rich.table import Table


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int] = (0,)) -> Table:
    """A table without lines, two spaces between its columns.

    Args:
        head: The headings of the columns.
        rows: The cells of each row. They are shown as they are: rich's markup means nothing in them.
        left: The columns with text, which are aligned to the left and folded where the table is too wide. The others
            have numbers: they are aligned to the right and never folded.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 1))
    for index, heading in enumerate(head):
        text = index in left
        table.add_column(
            Text(heading), justify="left" if text else "right", no_wrap=not text, overflow="fold", header_style=""
        )
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def plain_text(table: Table, width: int | None = None) -> str:
    """A table as text without colors and without spaces at the ends of lines.

    Args:
        table: The table.
        width: The most characters of a line; None: as many as the table needs.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(file=io.StringIO(), width=width or 1_000_000, color_system=None, legacy_windows=False)
    if width is None:
        console.width = max(Measurement.get(console, console.options, table).maximum, 1)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def text_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int] = (0,), width: int | None = None
) -> str:
    """The text of a table; see `make_table` and `plain_text`."""
    return plain_text(make_table(head, rows, left=left), width)
