"""Runs `bayesbits report`: the page about a run, and what it needs that the run did not keep."""

from pathlib import Path

from bayesbits.cli.console import print_line, print_status
from bayesbits.recipes.process import is_first_process
from bayesbits.recipes.run import restore
from bayesbits.recipes.statistics import write_statistics
from bayesbits.report import read_run, write_report


def print_report(folder: Path, output: Path | None, *, measure: bool = False) -> None:
    """Write the page about a run, print its path, and say what is wrong with the run.

    Only the first of several processes does.
    """
    if not is_first_process():
        return
    if measure:
        run = restore(folder)
        write_statistics(run.compressor, run.loaders, folder, print_status)
    found = read_run(folder)
    for problem in (*found.problems, *([found.unfinished] if found.unfinished else [])):
        print_status(f"the page says: {problem}")
    print_line(f"report: {write_report(folder, output)}")
