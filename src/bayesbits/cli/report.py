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
from bayesbits.report.figure_files import write_comparison_figures, write_figures
from bayesbits.report.run_data import Run

COMPARISON = Path("comparison.html")


def print_report(
    folders: Sequence[Path], output: Path | None, *, measure: bool = False, figures: Path | None = None
) -> None:
    """Write the page, print its path, and say what is wrong with the runs; the first of several processes does."""
    if not is_first_process():
        return
    for folder in folders if measure else ():
        finished = restore(folder)
        write_statistics(finished.compressor, finished.loaders, folder, print_status)
        if (folder / DEPLOYED).exists():
            measure_errors(restore(folder, "cpu"), load(folder / DEPLOYED), folder)
    runs = [read_run(folder) for folder in folders]
    if figures is not None:
        _write_figures(runs, figures)
    for run in runs:
        for problem in (*run.problems, *([run.unfinished] if run.unfinished else [])):
            print_status(f"the page says: {problem}")
    if len(folders) == 1:
        print_line(f"report: {write_report(folders[0], output)}")
    else:
        print_line(f"report: {write_comparison_page(folders, output or COMPARISON)}")


def _write_figures(runs: Sequence[Run], folder: Path) -> None:
    """The figures of a run, or of several in folders of their own beside the chart that compares them."""
    paths = write_comparison_figures(runs, folder) if len(runs) > 1 else []
    for run in runs:
        paths += write_figures(run, folder if len(runs) == 1 else folder / run.folder.resolve().name)
    print_status(f"wrote {len(paths)} figures to {folder}")
    if not any(path.suffix == ".png" for path in paths):
        print_status('only as SVG: for PNG, pip install "bayesbits[figures]"')
