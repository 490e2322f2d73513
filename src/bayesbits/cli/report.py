"""`bayesbits report`: a page about a finished run."""

from pathlib import Path
from typing import Annotated

import typer

from bayesbits.cli.console import results
from bayesbits.recipes.process import is_first_process
from bayesbits.report import write_report


def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")]) -> None:
    """Write DIR/report.html: one file about the run, to look at or to send, that needs nothing else."""
    if is_first_process():
        results().print(f"report: {write_report(folder)}", markup=False, highlight=False, soft_wrap=True)
