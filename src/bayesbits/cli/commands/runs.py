"""The commands that show a run: `plan`, `report`, `watch` and `explain`."""

from pathlib import Path
from typing import Annotated

import typer

from bayesbits.cli import options


def plan(folder: options.RunFolder) -> None:
    """Show the bits and channels of every layer of a run, and their cost."""
    from bayesbits.cli.show import show_plan

    show_plan(folder)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The folder of a run, or of several.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The page to write; by default DIR/report.html, or comparison.html.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure histograms and the error by layer again; this needs the data."),
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="FOLDER",
            help='Write the figures there, too: as SVG, and as PNG where pip install "bayesbits[figures]" was run.',
        ),
    ] = None,
) -> None:
    """Write DIR/report.html: one page about the run, without other files, to read or to send.

    Several folders are compared on one page: their front, the means over seeds, a table, and their plans side by side.
    A run that is not finished, or whose files are damaged, has a page that says so.

    Examples:

      bayesbits report runs/demo

      bayesbits report runs/mu0.01 runs/mu0.03 --out page.html
    """
    from bayesbits.cli.report import print_report

    print_report(folders, output, measure=measure, figures=figures)


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, also of one that is running.")],
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="The time between two views.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it one time, and end.")] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="FOLDER", help="Write everything there, too, for TensorBoard."),
    ] = None,
) -> None:
    """Watch a run in the terminal: losses, cost, metrics and bits, from the files that it writes.

    It ends when the run does; Ctrl-C ends it before, and does nothing to the run.
    """
    from bayesbits.cli.watch import run_watch

    run_watch(folder, seconds, once, tensorboard)


def explain(
    folder: options.RunFolder,
    tensor: Annotated[
        str | None, typer.Argument(metavar="TENSOR", help="Such as features.0.weight; without it all are listed.")
    ] = None,
) -> None:
    """Show the paper's decomposition of a tensor: its rounding to 2 bits, and the residuals that each width adds.

    Examples:

      bayesbits explain runs/demo

      bayesbits explain runs/demo features.0.weight
    """
    from bayesbits.cli.explain import run_explain

    run_explain(folder, tensor)
