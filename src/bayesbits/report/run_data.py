"""Reads the folder of a run: recipe, result, plan, topology, statistics, verification, measured times and front.

Everything on the page comes from here. A file that is missing, damaged, or from another run is no reason to show
nothing: what can be read is shown, and `Run.problems` says what is wrong. `training_curves` reads the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, TypeVar

from bayesbits.cost import Cost, CostModel
from bayesbits.deploy.verification.result import Verification
from bayesbits.recipes import Recipe, Result
from bayesbits.recipes import run_folder as files
from bayesbits.recipes.run_state import FAILED, KILLED, RunState, load_state
from bayesbits.records.bench import Bench
from bayesbits.records.front import Front
from bayesbits.records.plan import Plan
from bayesbits.records.tensor_statistics import TensorStatistics
from bayesbits.records.topology import Topology
from bayesbits.report.training_curves import Curves, read_curves

_TOLERANCE = 1e-6  # of relative bit operations that were written to a file and read again
_NUMBERS = (
    "relative_bops", "weight_bytes", "float_weight_bytes", "seconds", "mu", "seed", "epochs", "float_epochs",
    "finetune_epochs",
)  # fmt: skip
Part = TypeVar("Part")


@dataclass(frozen=True)
class Run:
    """A run, as far as its folder can be read; what is None is not there, or cannot be used."""

    folder: Path
    recipe: Recipe | None
    recipe_text: str
    """The recipe file, from which the run can be repeated; empty where there is none."""
    result: Result | None
    topology: Topology | None
    plan: Plan | None
    cost: Cost | None
    """The cost of the compressed network."""
    float_cost: Cost | None
    """The cost of the float network."""
    curves: Curves
    """The training curves; without points where no metrics were written."""
    statistics: TensorStatistics | None
    """Histograms of the tensors and the error by layer."""
    verification: Verification | None
    """The verification of the deployed network; None where it was not verified."""
    bench: Bench | None
    """Measured times; None where `bayesbits bench` did not run."""
    front: Front | None
    """The points of post-training."""
    unfinished: str
    """Why the run is not finished, and how to go on; empty for a finished run."""
    problems: tuple[str, ...]
    """What is damaged or does not belong together, with the way out."""
    incomplete: str = ""
    """Which files of a finished run are missing, and what that hides; empty where none is."""
    state: RunState | None = None
    """Of a run that is not finished: its process, or the error that ended it; None where that is not known."""

    @property
    def name(self) -> str:
        """The name of the recipe; of the folder where there is none."""
        return self.recipe.name if self.recipe is not None else self.folder.resolve().name

    @property
    def whereabouts(self) -> str:
        """What became of a run that is not finished, shorter than `unfinished` where its process is known."""
        if self.state is None:
            return self.unfinished
        words = self.state.words.rstrip(".")
        return f"{words[:1].upper()}{words[1:]}." + (f" Go on with: {self.state.command}" if self.has_ended else "")

    @property
    def failed(self) -> bool:
        """Whether an error ended the run, or its process was killed."""
        return self.state is not None and self.state.status in (FAILED, KILLED)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be written to the folder by itself."""
        return not self.unfinished or (self.state is not None and self.state.has_ended)


class _Reader:
    """Reads files of a folder, and keeps the errors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def read(self, name: str, read: Callable[[Path], Part], way_out: str) -> Part | None:
        """What a file says; None where it is missing or damaged."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            return read(path)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            reason = str(error) if str(path) in str(error) else f"{path} is damaged, or of another version: {error}"
            self.problems.append(reason if "bayesbits" in reason else f"{reason}. {way_out}")
            return None


def read_run(folder: str | Path) -> Run:
    """Read a run; an error only where the folder holds nothing of one."""
    folder = Path(folder)
    known = (files.RECIPE, files.RESULT, files.PLAN, files.METRICS, files.FRONT)
    if not any((folder / name).is_file() for name in known):
        raise FileNotFoundError(files.unfinished(folder, files.RESULT))
    reader, again = _Reader(folder), f"`{files.resume_command(folder)}` writes it again from the checkpoints"
    recipe_text = reader.read(files.RECIPE, lambda path: path.read_text(encoding="utf-8"), "") or ""
    recipe = reader.read(files.RECIPE, lambda _: files.load_recipe(folder), "Run the recipe again in another folder")
    result = reader.read(files.RESULT, _result, again)
    topology = reader.read(files.TOPOLOGY, Topology.load, again)
    plan = reader.read(files.PLAN, Plan.load, again)
    cost = float_cost = None
    if topology is not None:
        model, found = CostModel(topology), topology
        float_cost = model.dense()
        if plan is not None:
            decided = plan
            cost = reader.read(files.PLAN, lambda _: model.count(_checked(decided, found)), again)
    if cost is None:
        plan = None
    elif result is not None and not isclose(cost.relative_bops, result.relative_bops, rel_tol=_TOLERANCE):
        reader.problems.append(
            f"{folder / files.PLAN} needs {cost.relative_bops:.4g}% of the bit operations and {folder / files.RESULT} "
            f"says {result.relative_bops:.4g}%: the two files are from different runs. `bayesbits search` writes both"
        )
    return Run(
        folder=folder, recipe=recipe, recipe_text=recipe_text, result=result, topology=topology, plan=plan, cost=cost,
        float_cost=float_cost,
        curves=reader.read(files.METRICS, lambda path: read_curves(path, _epochs(recipe, result), result is not None),
                           "Without the file the page has no curves") or Curves(),
        statistics=reader.read(files.STATISTICS, lambda path: _statistics(path, plan),
                               "`bayesbits report --measure` writes it again"),
        verification=reader.read(files.VERIFICATION, lambda path: _verification(path, topology),
                                 f"Run `bayesbits verify {folder}` again, or remove the file"),
        bench=reader.read(files.BENCH, Bench.load, f"Run `bayesbits bench {folder}` again, or remove the file"),
        front=reader.read(files.FRONT, Front.load, "Run `bayesbits posttrain` again"),
        incomplete=_incomplete(folder),
        state=None if (folder / files.RESULT).is_file() else load_state(folder),
        unfinished="" if (folder / files.RESULT).is_file() else files.unfinished(folder, files.RESULT),
        problems=tuple(dict.fromkeys(reader.problems)),
    )  # fmt: skip


def _incomplete(folder: Path) -> str:
    """The files that every finished run has, and this one does not: it was moved or sent in parts."""
    missing = [name for name in (files.RECIPE, files.TOPOLOGY, files.PLAN) if not (folder / name).is_file()]
    if not missing or not (folder / files.RESULT).is_file():
        return ""
    names = " and ".join(missing) if len(missing) < 3 else f"{', '.join(missing[:-1])} and {missing[-1]}"
    there = "are not there" if len(missing) > 1 else "is not there"
    return f"{names} {there}: copy the whole folder of the run, or run `bayesbits search` again in {folder}"


def _checked(plan: Plan, topology: Topology) -> Plan:
    plan.check(topology)
    return plan


def _epochs(recipe: Recipe | None, result: Result | None) -> dict[str, int]:
    """The stages in their order, with their numbers of epochs; those of the result, as the recipe may be older."""
    if result is not None:
        return {"float": result.float_epochs, "search": result.epochs, "finetune": result.finetune_epochs}
    if recipe is None:
        return {"float": 0, "search": 0, "finetune": 0}
    stages = {"float": recipe.float_training, "search": recipe.search, "finetune": recipe.finetune}
    return {name: 0 if stage is None else stage.epochs for name, stage in stages.items()}


def _result(path: Path) -> Result:
    """A result in which every value that the page formats as a number is one."""
    result = Result.load(path)
    for name in _NUMBERS:
        value = getattr(result, name)
        if not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}; it must be a number")
    if not result.scores:
        raise ValueError("it has neither metrics nor an accuracy")
    for score in result.scores:
        if not isinstance(score.value, int | float) or not isinstance(score.float_value, int | float | None):
            raise ValueError(
                f"the metric {score.name} is {score.value!r}, and {score.float_value!r} for the float network; both "
                "must be numbers"
            )
    if not isinstance(result.versions, Mapping):
        raise ValueError(f"versions is {result.versions!r}; it must be an object")
    return result


def _statistics(path: Path, plan: Plan | None) -> TensorStatistics:
    """Statistics of this network and of no other."""
    statistics = TensorStatistics.load(path)
    widths: Mapping[str, Any] = {} if plan is None else plan.bits
    for tensor in statistics.tensors:
        if plan is not None and widths.get(tensor.name) != tensor.bits:
            raise ValueError(f"it is about another plan: {tensor.name} had {tensor.bits} bits when it was measured")
    return statistics


def _verification(path: Path, topology: Topology | None) -> Verification:
    """A verification in which every layer is one of this network."""
    verification = Verification.load(path)
    if topology is not None:
        unknown = sorted({one.layer for one in verification.kernels} - set(topology.macs_of))
        if unknown:
            raise ValueError(f"it is about another network: it has a layer {unknown[0]!r}")
    return verification
