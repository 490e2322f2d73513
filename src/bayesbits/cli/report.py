"""Runs `bayesbits report`: the page about a run or about several, and what it needs that a run did not keep."""

from collections.abc import Sequence
from pathlib import Path

from bayesbits.cli.console import print_line, print_status
from bayesbits.cli.deploy import DEPLOYED, measure_errors
from bayesbits.deploy import load
from bayesbits.recipes.process import is_first_process
from bayesbits.recipes.run import restore
from bayesbits.recipes.statistics import write_statistics
from bayesbits.report import read_run, write_comparison_page, write_report
from bayesbits.report.figure_files import write_figures

COMPARISON = Path("comparison.html")


def print_report(
    folders: Sequence[Path], output: Path | None, *, measure: bool = False, figures: Path | None = None
) -> None:
    """Write the page, print its path, and say what is wrong with the runs; the first of several processes does."""
    if not is_first_process():
        return
    for folder in folders if measure else ():
        run = restore(folder)
        write_statistics(run.compressor, run.loaders, folder, print_status)
        if (folder / DEPLOYED).exists():
            measure_errors(restore(folder, "cpu"), load(folder / DEPLOYED), folder)
    for folder in folders:
        found = read_run(folder)
        if figures is not None:
            place = figures if len(folders) == 1 else figures / folder.resolve().name
            paths = write_figures(found, place)
            print_status(f"wrote {len(paths)} figures to {place}")
            if not any(path.suffix == ".png" for path in paths):
                print_status('only as SVG: for PNG, pip install "bayesbits[figures]"')
        for problem in (*found.problems, *([found.unfinished] if found.unfinished else [])):
            print_status(f"the page says: {problem}")
    if len(folders) == 1:
        print_line(f"report: {write_report(folders[0], output)}")
    else:
        print_line(f"report: {write_comparison_page(folders, output or COMPARISON)}")
