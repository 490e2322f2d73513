"""`bayesbits plan`: what a run decided."""

from pathlib import Path
from typing import Annotated

import typer

from bayesbits.cli.console import results
from bayesbits.cli.tables import layer_table, result_table
from bayesbits.cost import CostModel
from bayesbits.recipes import Result
from bayesbits.recipes.result import layer_rows
from bayesbits.recipes.run_folder import PLAN, RESULT, TOPOLOGY, unfinished
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from bayesbits.report.numbers import size


def plan(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]) -> None:
    """Show the bits and channels of every layer, and what they cost."""
    for name in (PLAN, TOPOLOGY):
        if not (folder / name).is_file():
            raise FileNotFoundError(unfinished(folder, name))
    topology, decided = Topology.load(folder / TOPOLOGY), Plan.load(folder / PLAN)
    decided.check(topology)
    cost = CostModel(topology).count(decided)
    console = results()
    console.print(layer_table(layer_rows(cost, topology), console))
    console.print(
        f"{cost.macs:,} MACs, {cost.bops:,} BOPs: {cost.relative_bops:.3g}% of 32 x 32 bits "
        f"({cost.paper_relative_bops:.3g}% in the paper's convention); {size(cost.weight_bytes)} of weights",
        highlight=False,
    )
    if (folder / RESULT).is_file():
        console.print()
        console.print(result_table(Result.load(folder / RESULT)))
