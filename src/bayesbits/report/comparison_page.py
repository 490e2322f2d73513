"""The page about several runs: their front, a table, and their plans side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bayesbits.recipes.run_folder import write
from bayesbits.report import comparison, seed_groups
from bayesbits.report.page import render
from bayesbits.report.run_data import read_run

MOST_PLANS = 12
"""The most plans that are shown side by side."""


def write_comparison_page(folders: Sequence[str | Path], path: str | Path) -> Path:
    """Write a page that compares runs, those of a sweep for one; returns its path.

    Args:
        folders: The folders of the runs. One that is not finished is listed as such.
        path: The page to write.

    Raises:
        FileNotFoundError: If a folder holds nothing of a run.
        ValueError: If there is no folder.
    """
    if not folders:
        raise ValueError("there are no runs to compare: give at least one folder")
    runs = [read_run(folder) for folder in dict.fromkeys(map(Path, folders))]
    names = comparison.run_names(runs)
    planned = [(run, name) for run, name in zip(runs, names, strict=True) if run.cost is not None][:MOST_PLANS]
    metric = seed_groups.metric_of(runs)
    page = render(
        "comparison.html.jinja",
        title=f"{len(runs)} runs compared" if len(runs) > 1 else f"{runs[0].name}: one run",
        names=names,
        problems=[(name, text) for run, name in zip(runs, names, strict=True) for text in run.problems],
        unfinished=[(name, run.whereabouts) for run, name in zip(runs, names, strict=True) if run.unfinished],
        incomplete=[(name, run.incomplete) for run, name in zip(runs, names, strict=True) if run.incomplete],
        chart=comparison.comparison_chart(runs),
        rows=comparison.table(runs),
        means=seed_groups.means(runs),
        metric="score" if metric is None else metric[0],
        plans=[name for _, name in planned],
        plan_rows=comparison.plan_rows([run for run, _ in planned]) if len(planned) > 1 else [],
        left_out=sum(run.cost is not None for run in runs) - len(planned),
    )
    path = Path(path)
    write(path, page)
    return path
