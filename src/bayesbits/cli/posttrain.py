"""`bayesbits posttrain`: bits for a trained network, the weights untouched."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from bayesbits.cli import options
from bayesbits.cli.console import results, say
from bayesbits.cli.learned import learned_before, write_settings
from bayesbits.cli.search import show
from bayesbits.cli.tables import file_table
from bayesbits.cli.trained import Checkpoint, Examples, Gates, Labels, Out, Start, score_on_test, show_front, start
from bayesbits.posttraining import PosttrainConfig, restore
from bayesbits.posttraining import posttrain as learn_points
from bayesbits.posttraining.config import MUS
from bayesbits.recipes.evaluation import measure
from bayesbits.recipes.recipe import Recipe, TaskConfig
from bayesbits.recipes.run import write_posttrained
from bayesbits.recipes.run_folder import FRONT
from bayesbits.records.front import Front, Point


def posttrain(
    recipe: options.RecipeName = None,
    overrides: options.Overrides = None,
    checkpoint: Checkpoint = None,
    model: options.Model = None,
    data: options.Data = None,
    task: options.TaskName = None,
    loss: options.LossName = None,
    metric: options.MetricName = None,
    labels: Labels = "given",
    learn: Annotated[Literal["gates", "gates+ranges"], typer.Option(help="What is learned.")] = "gates+ranges",
    examples: Examples = 1024,
    steps: Annotated[
        int,
        typer.Option(
            min=1,
            help="Steps for each point. Too few close no gate: one starts at 6, closes below -0.9, and a step moves it "
            f"by about {PosttrainConfig.gate_lr:g}.",
        ),
    ] = PosttrainConfig.steps,
    mus: Annotated[
        str | None,
        typer.Option(
            help="The weights of the penalty, increasing and with commas: a point for each. Eight by default."
        ),
    ] = None,
    gates: Gates = "hard_sigmoid",
    within: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            min=0,
            help="Make final the most expensive point that costs at most this much of the bit operations at 32 x 32 "
            "bits.",
        ),
    ] = None,
    out: Out = None,
    device: options.Device = None,
) -> None:
    """Learn the bits of a trained network on a few examples, as a front of points; no weight changes.

    With --within one of them becomes the final network in that folder, as after `bayesbits search`.

    Examples:

      bayesbits posttrain digits-lenet5 --within 2

      bayesbits posttrain my.toml --checkpoint trained.pth --labels none
    """
    loaded = options.asked_recipe(recipe, overrides, model=model, data=data, task=task, loss=loss, metric=metric)
    config = PosttrainConfig(_numbers(mus, gates), _what_is_asked(labels, loaded), steps)
    ready = start(
        loaded, checkpoint, out=out, labeled=labels == "given", examples=examples, gates=gates, device=device,
        final=within is not None,
    )  # fmt: skip
    front, seconds = _learn(ready, learn, config)
    asked = "with" if labels == "given" else "without"
    title = f"{learn}, learned on {ready.examples:,} examples {asked} labels"
    show_front(front, ready.trained, title, [f"mu = {point.mu:g}" for point in front.points])
    if within is None:
        say(
            f"{ready.folder / FRONT} holds every point; the same command with --within PERCENT makes the most "
            "expensive one final that costs at most this much"
        )
    else:
        _finish(ready, _affordable(front, within, ready.folder / FRONT), seconds)


def _what_is_asked(labels: str, recipe: Recipe) -> str:
    """The loss: with labels the recipe's own; without, the float network's class probabilities or, where there are
    none, what its layers give."""
    if labels == "given":
        return "labels"
    return "output" if recipe.task.has_logits else "layers"


def _numbers(mus: str | None, gates: str) -> tuple[float, ...]:
    if mus is None:
        return MUS[gates]
    try:
        numbers = tuple(float(number) for number in mus.split(","))
        return PosttrainConfig(numbers).mus or ()
    except ValueError as error:
        message = f"{mus!r} are no weights of a penalty; give increasing numbers as 0.001,0.01"
        raise typer.BadParameter(message, param_hint="--mus") from error


def _learn(ready: Start, learn: str, config: PosttrainConfig) -> tuple[Front, float]:
    """The front, of which each point is written as soon as it is there, and how long it took."""
    settings = {"learn": learn, "examples": ready.examples, "weights": ready.weights, **asdict(config)}
    settings["gates"] = ready.compressor.spec.gates
    metric = ready.trained.task.metric
    if ready.recipe.task != TaskConfig():  # which older fronts do not speak of
        settings["task"] = asdict(ready.recipe.task)
    path, wanted = ready.folder / FRONT, len(config.mus or ())
    before = learned_before(ready.folder, settings)
    if before is not None and len(before.points) == wanted:
        say(f"{path} holds all of its points already, learned in the same way; remove it to learn them again")
        return before, 0.0

    def keep(front: Front) -> None:
        write_settings(ready.folder, settings)
        front.save(path)
        point = front.points[-1]
        assert point.score is not None
        cost = f"{point.relative_bops:.4g}% of the bit operations"
        say(f"mu {point.mu:g}: {cost}, test {metric.name} {metric.text(metric.score(point.score))}")

    begun = time.monotonic()
    try:
        front = learn_points(
            ready.compressor, ready.batches, learn, config,
            loss_fn=ready.trained.task.loss.function if config.loss == "labels" else None,
            evaluate=lambda _network: score_on_test(ready.compressor, ready.trained), keep=keep,
        )  # fmt: skip
    except KeyboardInterrupt as error:
        done = len(Front.load(path).points) if path.exists() else 0
        raise KeyboardInterrupt(
            f"{done} of {wanted} points are {'in' if done else 'done, and there is no'} {path}; the same command "
            "learns all of them again"
        ) from error
    return front, time.monotonic() - begun


def _affordable(front: Front, within: float, path: Path) -> Point:
    """The most expensive point within a cost: not the best one, as the scores are those of the test set."""
    affordable = [point for point in front.points if point.relative_bops <= within]
    if not affordable:
        cheapest = min(front.points, key=lambda point: point.relative_bops)
        raise ValueError(
            f"no point costs at most {within:g}%: the cheapest, mu = {cheapest.mu:g}, costs "
            f"{cheapest.relative_bops:.4g}%. Give --within more, or larger weights by --mus and another folder by "
            f"--out; {path} has every point"
        )
    return max(affordable, key=lambda point: point.relative_bops)


def _finish(ready: Start, point: Point, seconds: float) -> None:
    """Make a point final, and write and show it as the result of a search."""
    assert point.mu is not None
    trained = ready.trained
    restore(ready.compressor, point)
    values, _ = measure(ready.compressor.model, trained.loaders.test, trained.task.metrics)
    result = write_posttrained(
        ready.recipe, ready.folder, ready.compressor, point.plan, trained.process, mu=point.mu, seconds=seconds,
        scores=trained.task.scores(values, trained.values),
    )  # fmt: skip
    show(result)
    results().print(file_table(ready.folder))
    say(f"mu = {point.mu:g} is final: bayesbits plan, export, verify, bench and report take {ready.folder}")
