"""Everything that the folder of a finished run holds for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import TypeVar

from bayesbits.cost import Cost, CostModel
from bayesbits.deploy.verification.record import Verification
from bayesbits.recipes import Recipe, Result, load
from bayesbits.recipes.run_folder import METRICS, PLAN, RECIPE, RESULT, TOPOLOGY, VERIFICATION, unfinished
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from bayesbits.report.course import Stage, read_course

_SAME = 1e-6  # of relative bit operations that were written and read again
_NUMBERS = ["relative_bops", "seconds", "mu", "seed"]
_NUMBERS += ["epochs", "float_epochs", "finetune_epochs"]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    """Where it lies."""
    recipe: Recipe
    recipe_text: str
    """The file that makes it again."""
    result: Result
    topology: Topology
    plan: Plan
    cost: Cost
    """What the plan costs."""
    float_cost: Cost
    """What the float network costs."""
    course: tuple[Stage, ...]
    """The training stage by stage; empty where no metrics were kept."""
    verification: Verification | None
    """What was proven about the deployed network; None where nothing was."""


def read_run(folder: str | Path) -> Run:
    """The run in a folder; an error that names the file where one is missing, damaged, or of another run."""
    folder = Path(folder)
    for name in (RESULT, RECIPE, PLAN, TOPOLOGY):
        if not (folder / name).is_file():
            raise FileNotFoundError(unfinished(folder, name))
    result = _checked(folder / RESULT, _result)
    topology, plan = _checked(folder / TOPOLOGY, Topology.load), _checked(folder / PLAN, Plan.load)
    model = CostModel(topology)
    cost = _checked(folder / PLAN, lambda _path: model.count(plan))
    if not isclose(cost.relative_bops, result.relative_bops, rel_tol=_SAME):
        raise ValueError(
            f"{folder / PLAN} comes to {cost.relative_bops:.4g}% of the bit operations and {folder / RESULT} says "
            f"{result.relative_bops:.4g}%: they are of different runs. `bayesbits search` writes both anew"
        )
    recipe_text = _checked(folder / RECIPE, lambda path: path.read_text(encoding="utf-8"))
    epochs = {"float": result.float_epochs, "search": result.epochs, "finetune": result.finetune_epochs}
    metrics, verification = folder / METRICS, folder / VERIFICATION
    return Run(
        folder=folder,
        recipe=load(folder / RECIPE),
        recipe_text=recipe_text,
        result=result,
        topology=topology,
        plan=plan,
        cost=cost,
        float_cost=model.dense(),
        course=read_course(metrics, epochs) if metrics.is_file() else (),
        verification=_of_this_network(verification, topology) if verification.is_file() else None,
    )


def _checked(path: Path, read: Callable[[Path], Part]) -> Part:
    try:
        return read(path)
    except ValueError as error:
        where = "" if str(path) in str(error) else f"{path} cannot be used: "
        raise ValueError(f"{where}{error}") from error


def _result(path: Path) -> Result:
    """A result, of which the page can write every number."""
    result = Result.load(path)
    for name in _NUMBERS:
        value = getattr(result, name)
        if not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}; it is a number")
    if not result.scores:
        raise ValueError("there are neither metrics nor an accuracy")
    for score in result.scores:
        if not isinstance(score.value, int | float) or not isinstance(score.float_value, int | float | None):
            raise ValueError(
                f"the metric {score.name} is {score.value!r}, before {score.float_value!r}; it is a number"
            )
    if not isinstance(result.versions, Mapping):
        raise ValueError(f"versions is {result.versions!r}; it is an object")
    return result


def _of_this_network(path: Path, topology: Topology) -> Verification:
    verification = _checked(path, Verification.load)
    strange = sorted({kernel.layer for kernel in verification.kernels} - {layer.name for layer in topology.layers})
    if strange:
        raise ValueError(f"{path} is about another network: it has a layer {strange[0]!r}; verify again, or remove it")
    return verification
