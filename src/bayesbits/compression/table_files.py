"""Latency tables as users give them: as objects, or as the paths of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayesbits.records.latency_table import LatencyTable


def as_table(given: Any, what: str) -> LatencyTable | None:
    """A latency table from what a user gives: a `LatencyTable`, its file, or None; `what` names the option."""
    if given is None or isinstance(given, LatencyTable):
        return given
    if not isinstance(given, str | Path):
        raise ValueError(f"{what} is a {type(given).__name__}; it is a LatencyTable, or the path of its file")
    if not Path(given).is_file():
        raise ValueError(
            f"{what}: there is no file {str(given)!r}; write it by `bayesbits measure NETWORK --output {given}`"
        )
    try:
        return LatencyTable.load(given)
    except ValueError as error:
        raise ValueError(f"{what}, {given}: {error}") from None
