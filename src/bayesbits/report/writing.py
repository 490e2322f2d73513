"""The page of a run, written into its folder."""

from __future__ import annotations

from pathlib import Path

from bayesbits.recipes.run_folder import REPORT, write
from bayesbits.report.page import page
from bayesbits.report.reading import read_run


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a finished run; returns its path."""
    path = Path(folder) / REPORT
    write(path, page(read_run(folder)))
    return path
