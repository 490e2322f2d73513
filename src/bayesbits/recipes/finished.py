"""The end of a run: the final network written to the folder, and made anew from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bayesbits.compression.attach import attach
from bayesbits.compression.compressor import Compressor
from bayesbits.recipes import folder as files
from bayesbits.recipes.loaders import Loaders, open_data
from bayesbits.recipes.machine import Machine, find_machine, versions
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.networks import build
from bayesbits.recipes.reading import load
from bayesbits.recipes.recipe import Recipe
from bayesbits.recipes.result import POSTTRAINING, Result, make_result
from bayesbits.records.plan import Plan
from bayesbits.training.execution import executions_in
from bayesbits.training.metrics_log import read_metrics


@dataclass(frozen=True)
class FinishedRun:
    """What a run left behind, ready to be used."""

    recipe: Recipe
    compressor: Compressor
    """The final network: trained, with bits and channels fixed."""
    plan: Plan
    loaders: Loaders
    result: Result


def restore(folder: str | Path, device: str | None = None) -> FinishedRun:
    """The final network of a run, its plan and its data, made anew from the run's folder."""
    folder = Path(folder)
    if not (folder / files.RESULT).exists():
        raise FileNotFoundError(files.unfinished(folder, files.RESULT))
    result = Result.load(folder / files.RESULT)
    recipe, machine = load(folder / files.RECIPE), find_machine(device)
    loaders = open_data(recipe.data, machine, recipe.seed, labeled=False)
    model = build(recipe.model.name, recipe.model.options, loaders.classes)[0].to(machine.device)
    compressor = attach(model, loaders.example, recipe.spec)
    files.load_weights(model, folder / files.MODEL)
    model.eval()
    plan = Plan.load(folder / files.PLAN)
    return FinishedRun(recipe, compressor, plan, loaders, result)


def describe(
    recipe: Recipe, folder: Path, compressor: Compressor, plan: Plan, machine: Machine, *,
    scores: tuple[Score, ...], advice: str = "",
) -> Result:  # fmt: skip
    """What a run came to, with the time that its metrics tell."""
    topology = compressor.topology
    everything_in_float = Plan.uniform(topology, weights=32, activations=32, input_bits=32)
    seconds: dict[str, float] = {}
    lines = read_metrics(folder / files.METRICS) if machine.first and (folder / files.METRICS).exists() else []
    for line in lines:
        seconds[line["phase"]] = line.get("seconds", seconds.get(line["phase"], 0.0))
    return make_result(
        recipe, compressor.cost(plan), compressor.cost(everything_in_float), topology,
        scores=scores, seconds=sum(seconds.values()), device=machine.described, versions=versions(), advice=advice,
        executions=executions_in(lines),
    )  # fmt: skip


def write_posttrained(
    recipe: Recipe, folder: Path, compressor: Compressor, plan: Plan, machine: Machine, *,
    mu: float, seconds: float, scores: tuple[Score, ...],
) -> Result:  # fmt: skip
    """Write a network whose plan post-training made final as a search writes its own, in the place of one before."""
    result = describe(recipe, folder, compressor, plan, machine, scores=scores)
    result = replace(
        result, method=POSTTRAINING, mu=mu, epochs=0, finetune_epochs=0, seconds=result.seconds + seconds
    )  # fmt: skip
    for name in (files.RESULT, files.VERIFICATION, files.REPORT):  # of a plan before
        (folder / name).unlink(missing_ok=True)
    compressor.topology.save(folder / files.TOPOLOGY)
    plan.save(folder / files.PLAN)
    files.save_weights(compressor.model, folder / files.MODEL)
    result.save(folder / files.RESULT)
    return result
