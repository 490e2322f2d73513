"""Runs `bayesbits posttrain`: learns the bits of a trained network, with its weights unchanged."""

import hashlib
import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from bayesbits.cli.calibrated_network import (
    CalibratedNetwork,
    calibrated_network,
    load_without_pruning,
    parse_budget,
    score_on_test,
    show_front,
)
from bayesbits.cli.console import output_console, print_line, print_status
from bayesbits.cli.deploy import with_measured_latency
from bayesbits.cli.options import RecipeOptions
from bayesbits.cli.search import show_result
from bayesbits.cli.solver import LEARNED, SOLVER, best_planner, check_solver, solver_point
from bayesbits.cli.tables import file_table
from bayesbits.compression.budget import Budget
from bayesbits.posttraining import PosttrainConfig, posttrain, restore
from bayesbits.posttraining.config import LOSSES
from bayesbits.posttraining.losses import LossFunction
from bayesbits.posttraining.penalty_weights import MULTIPLES
from bayesbits.recipes import Recipe
from bayesbits.recipes.evaluation import measure
from bayesbits.recipes.factories import find_function
from bayesbits.recipes.recipe import TaskConfig
from bayesbits.recipes.run import write_posttrained
from bayesbits.recipes.run_folder import FRONT, POSTTRAIN, first_difference
from bayesbits.recipes.run_state import recorded
from bayesbits.recipes.statistics import write_statistics
from bayesbits.recipes.toml import to_table
from bayesbits.records.front import Front, Point
from bayesbits.utils.files import write_atomically

_NEW_NAMES = {"gate_rate": "gate_lr", "range_rate": "range_lr"}  # in files of earlier versions


def run_posttrain(
    options: RecipeOptions, checkpoint: Path | None, output: Path | None, *, labels: str, learn: str, num_examples: int,
    steps: int, mus: str | None, gates: str, per_channel: bool, budget: str | None, planner: str, device: str | None,
    latency_table: Path | None = None,
) -> None:  # fmt: skip
    """Learn a front, show it, and make one of its points, or the solver's, final where there is a budget."""
    limit = None if budget is None else parse_budget(budget, latency_table)
    if limit is None and planner != "best":
        raise typer.BadParameter(f"{planner} is a choice for --budget, which is missing", param_hint="--planner")
    solves = limit is not None and check_solver(planner)
    compared = options.loss if labels == "none" and _compares_with_float(options.loss) else None
    recipe = load_without_pruning(options if compared is None else replace(options, loss=None))
    config = PosttrainConfig(_parse_mus(mus), _found(compared or _loss(labels, recipe)), steps)
    network = calibrated_network(
        recipe, checkpoint, output=output, labeled=labels == "given", num_examples=num_examples, gates=gates,
        per_channel=per_channel, device=device, budget=limit, final=budget is not None,
    )  # fmt: skip
    points = 0 if planner == SOLVER else _number_of_points(network, config, limit)
    with recorded(network.folder, shlex.join(["bayesbits", *sys.argv[1:]]), "post-training", points):
        title = f"{network.num_examples:,} examples {'with' if labels == 'given' else 'without'} labels"
        _learn(network, learn, config, title, limit, planner, solves)


def _learn(
    network: CalibratedNetwork, learn: str, config: PosttrainConfig, title: str, limit: Budget | None, planner: str,
    solves: bool,
) -> None:  # fmt: skip
    """Learn a front, show it, and make one of its points final where there is a limit."""
    front, seconds = Front(()), 0.0
    if planner != SOLVER:
        front, seconds = _learn_front(network, learn, config, limit)
        title = f"{learn}, learned on {title}"
    names = [f"mu = {point.mu:g}" for point in front.points]
    if limit is None:
        show_front(front, network.trained, title, names)
        print_status(
            f"{network.folder / FRONT} holds every point; the same command with --budget LIMIT, such as "
            '"2% bops", learns them again and makes the best plan within that cost final'
        )
        return
    points = {} if planner == SOLVER else {LEARNED: front.points[-1]}
    loss_fn = network.trained.task.loss.function
    if solves:
        start = time.monotonic()
        points[SOLVER] = solver_point(
            network.compressor, network.batches, config, loss_fn, limit,
            lambda: score_on_test(network.compressor, network.trained),
        )  # fmt: skip
        seconds += time.monotonic() - start
    chosen = best_planner(network.compressor, network.batches, config, loss_fn, points)
    shown = Front((*front.points[:-1], *points.values()))
    show_front(shown, network.trained, title, [*names[:-1], *(f"{name}, within {limit}" for name in points)])
    _make_final(network, chosen, points[chosen], seconds, limit)


def _loss(labels: str, recipe: Recipe) -> str:
    """The recipe's own loss with labels; without, the float network's class probabilities or its layers' outputs."""
    if labels == "given":
        return "labels"
    return "output" if recipe.task.has_logits else "layers"


def _compares_with_float(loss: str | None) -> bool:
    """Whether --loss names a comparison with the float network, and not the loss that the task is trained with."""
    return loss is not None and (loss in LOSSES[1:] or ":" in loss)


def _found(loss: str) -> str | LossFunction:
    """A loss by its name, or a function of the user's of output and float output."""
    return find_function(loss, "loss") if ":" in loss else loss


def _parse_mus(mus: str | None) -> tuple[float, ...] | None:
    """The weights that are given; None: they are chosen for the network."""
    if mus is None:
        return None
    try:
        numbers = tuple(float(number) for number in mus.split(","))
        return PosttrainConfig(numbers).mus
    except ValueError as error:
        message = f"{mus!r} are no weights of a penalty; write increasing numbers as 0.001,0.01"
        raise typer.BadParameter(message, param_hint="--mus") from error


def _learn_front(
    network: CalibratedNetwork, learn: str, config: PosttrainConfig, budget: Budget | None
) -> tuple[Front, float]:
    """The front and the seconds it took; each point is written when it is done."""
    metric = network.trained.task.metric
    path, number = network.folder / FRONT, _number_of_points(network, config, budget)
    settings = _settings(network, learn, config) | {"budget": None if budget is None else str(budget)}
    if budget is not None and budget.table is not None:
        settings["latency_table"] = hashlib.sha256(budget.table.to_json().encode()).hexdigest()
    before = _front_before(network.folder, settings)
    if before is not None and len(before.points) == number:
        print_status(
            f"{path} holds all of its points already, learned with the same settings; remove it to learn them again"
        )
        return before, 0.0

    def keep(front: Front) -> None:
        write_atomically(network.folder / POSTTRAIN, _json(settings).encode())
        front.save(path)
        point = front.points[-1]
        assert point.score is not None
        cost = f"{point.relative_bops:.4g}% of the bit operations"
        name = f"mu {point.mu:g}" if len(front.points) < number or budget is None else f"within {budget}"
        print_status(f"{name}: {cost}, test {metric.name} {metric.text(metric.score(point.score))}")

    start = time.monotonic()
    try:
        front = posttrain(
            network.compressor, network.batches, learn, config,
            loss_fn=network.trained.task.loss.function if config.loss == "labels" else None,
            evaluate=lambda _model: score_on_test(network.compressor, network.trained), keep=keep, budget=budget,
        )  # fmt: skip
    except KeyboardInterrupt as error:
        done = len(Front.load(path).points) if path.exists() else 0
        raise KeyboardInterrupt(
            f"{done} of {number} points are {'in' if done else 'done, and there is no'} {path}; the same command "
            "learns all of them again"
        ) from error
    return front, time.monotonic() - start


def _number_of_points(network: CalibratedNetwork, config: PosttrainConfig, budget: Budget | None) -> int:
    """One for each weight of the penalty, and with a budget one more."""
    return len(config.mus or MULTIPLES[network.compressor.spec.gates]) + (budget is not None)


def _settings(network: CalibratedNetwork, learn: str, config: PosttrainConfig) -> dict[str, Any]:
    """Everything that determines a front; written beside it, so that it is never mixed with another."""
    settings = {"learn": learn, "examples": network.num_examples, "weights": network.weights, **asdict(config)}
    if callable(config.loss):
        settings["loss"] = (
            f"{config.loss.__module__}:{getattr(config.loss, '__qualname__', type(config.loss).__name__)}"
        )
    settings["gates"] = network.compressor.spec.gates
    if network.compressor.spec.per_channel_weights:  # older files say nothing, and have one range for each tensor
        settings["per_channel_weights"] = True
    spec = to_table(network.recipe)["spec"]
    settings["spec"] = {name: value for name, value in spec.items() if name != "latency_table"}
    if network.recipe.task != TaskConfig():  # older files have no task
        settings["task"] = asdict(network.recipe.task)
    return settings


def _front_before(folder: Path, settings: Mapping[str, Any]) -> Front | None:
    """The front in a folder, if there is one; an error where it was learned with other settings."""
    if not (folder / FRONT).exists():
        return None
    solution = "choose another folder by --output"
    if not (folder / POSTTRAIN).exists():
        raise ValueError(
            f"{folder / FRONT} exists, and no {POSTTRAIN} says how it was learned; {solution}, or remove it"
        )
    try:
        found = json.loads((folder / POSTTRAIN).read_text(encoding="utf-8"))
        found = {_NEW_NAMES.get(name, name): value for name, value in found.items()}
        found.setdefault("spec", settings["spec"])  # older files do not say it
        front: Front | None = Front.load(folder / FRONT)
    except ValueError as error:
        raise ValueError(f"{folder} holds a front that cannot be read ({error}); {solution}, or remove it") from error
    if found.setdefault("budget", None) != settings["budget"]:  # the same points are learned again, with others
        found["budget"], front = settings["budget"], None
    difference = first_difference(found, json.loads(_json(settings)))
    if difference is not None:
        raise ValueError(f"{folder / FRONT} was learned with other settings: {difference}; {solution}")
    return front


def _json(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2) + "\n"


def _make_final(network: CalibratedNetwork, planner: str, point: Point, seconds: float, budget: Budget) -> None:
    """Make a point final, and write and show it like the result of a search."""
    trained = network.trained
    restore(network.compressor, point)
    values, _ = measure(network.compressor.model, trained.loaders.test, trained.task.metrics)
    result = write_posttrained(
        network.recipe, network.folder, network.compressor, point.plan, trained.process, mu=point.mu or 0.0,
        seconds=seconds, scores=trained.task.scores(values, trained.values), budget=budget,
    )  # fmt: skip
    write_statistics(network.compressor, trained.loaders, network.folder, print_status)
    show_result(result)
    result = with_measured_latency(result, network.folder)
    output_console().print(file_table(network.folder))
    print_line(f"\n{result.verdict}")
    found = "solver's plan" if point.mu is None else f"{planner} plan from mu = {point.mu:g}"
    print_status(f"the {found} is final; bayesbits plan, export, verify, bench and report accept {network.folder}")
