"""The head of the page: its title, the verdict, and the most important numbers, each with a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from bayesbits.recipes import Result
from bayesbits.report.formatting import format_bytes, format_reduction, format_seconds
from bayesbits.report.run_data import Run
from bayesbits.report.training_charts import STAGES, unit_of

GOOD, BAD, NEUTRAL = "good", "bad", ""


@dataclass(frozen=True)
class Card:
    """A number with what it is compared with."""

    name: str
    value: str
    before: str
    """The value of the float network; empty where there is none."""
    note: str
    state: str = NEUTRAL
    """"good", "bad" or empty; the note says it in words, too."""


def title_of(run: Run) -> str:
    """The most important result in a few words."""
    if run.unfinished:
        return f"{run.name}: {'failed' if run.failed else 'not finished'}"
    if run.cost is None:
        return f"{run.name}: {'incomplete' if run.incomplete else 'damaged'}"
    return f"{run.name}: {format_reduction(100, run.cost.relative_bops, 'fewer bit operations')}"


def verdict_of(run: Run) -> tuple[str, str]:
    """The verdict as a sentence, and whether it is good or bad."""
    if run.result is None:
        return "", NEUTRAL
    text = run.result.verdict
    state = BAD if text.startswith(("not within", "no gate closed")) or "points lost" in text else NEUTRAL
    if text.startswith("within"):
        state = GOOD if state == NEUTRAL else state
    return (f"{text[:1].upper()}{text[1:]}." if text else ""), state


def cards(run: Run) -> list[Card]:
    """The cards: metrics, cost, size, latency and verification, as far as they are known; else how far the run is."""
    if run.unfinished:
        return _progress(run)
    found = []
    for score in () if run.result is None else run.result.scores[:1]:
        state = NEUTRAL
        if score.float_value is not None and score.value != score.float_value:
            state = GOOD if (score.value > score.float_value) == score.higher_is_better else NEUTRAL
        note = f"{score.change}" if score.change is not None else "the search started from scratch"
        found.append(Card(f"Test {score.name}", score.text, score.float_text or "", note, state))
    cost, before = run.cost, run.float_cost
    if run.result is not None and cost is None:
        found += _from_result(run.result)
    if cost is not None and before is not None:
        budget = None if run.recipe is None else run.recipe.search.budget
        state, note = NEUTRAL, format_reduction(100, cost.relative_bops, "fewer")
        if budget is not None and budget.relative_bops is not None:
            inside = cost.relative_bops <= budget.relative_bops
            state = GOOD if inside else BAD
            note = f"{note}; {'within' if inside else 'above'} the budget of {budget.relative_bops:g}%"
        found.append(Card("Bit operations", f"{cost.relative_bops:.3g}%", "100%", note, state))
        smaller = format_reduction(before.weight_bytes, cost.weight_bytes, "smaller")
        found.append(Card("Weights", format_bytes(cost.weight_bytes), format_bytes(before.weight_bytes), smaller))
    latency = _latency(run)
    if latency is not None:
        found.append(latency)
    if cost is not None:
        found.append(_verified(run))
    return found


def _from_result(result: Result) -> list[Card]:
    """Cost and size as the result has them, where the plan or the network cannot be read."""
    before, after = result.float_weight_bytes, result.weight_bytes
    fewer, smaller = (
        format_reduction(100, result.relative_bops, "fewer"), format_reduction(before, after, "smaller")
    )  # fmt: skip
    return [
        Card("Bit operations", f"{result.relative_bops:.3g}%", "100%", fewer),
        Card("Weights", format_bytes(after), format_bytes(before), smaller),
    ]


def progress(run: Run) -> tuple[str, float] | None:
    """The stage and epoch that a run has reached, in words, and the percentage of the stage; None before all stages.

    Post-training has points in the place of epochs. The curves are those of the float training before it.
    """
    if run.state is not None and run.state.stage:
        done, points = 0 if run.front is None else len(run.front.points), run.state.points
        return f"{run.state.stage}, {done} of {points} points", 100 * done / max(points, 1)
    if not run.curves.stages:
        return None
    stage = run.curves.stages[-1]
    epoch = max((point.epoch for point in (*stage.points, *stage.evaluations)), default=0.0)
    words = f"{STAGES.get(stage.name, stage.name)}, epoch {epoch:.3g} of {stage.epochs:g}"
    return words, 100 * epoch / max(stage.epochs, 1e-9)


def _progress(run: Run) -> list[Card]:
    """Where a run is, and its latest values."""
    reached = progress(run)
    if reached is None:
        return []
    found = [Card("So far", f"{reached[1]:.0f}%", "", reached[0])]
    if run.state is not None and run.state.stage:
        return found
    stage = run.curves.stages[-1]
    points = (*stage.points, *stage.evaluations)
    latest = {name: value for point in points for name, value in point.values.items()}
    if "task_loss" in latest:
        found.append(Card("Loss", f"{latest['task_loss']:.3g}", "", "of the task, at the latest step"))
    cost = latest.get("relative_bops", latest.get("expected_relative_bops"))
    if cost is not None:
        found.append(Card("Bit operations", f"{cost:.3g}%", "100%", "as the gates are now"))
    for name, value in latest.items():
        if name.startswith("validation_"):
            title = name.removeprefix("validation_").replace("_", " ")
            found.append(Card(title.capitalize(), f"{value:.4g}{unit_of(run, title)}", "", "on held-back data"))
    return found


def _latency(run: Run) -> Card | None:
    """The measured time of one example with one thread, or what a latency table predicts."""
    if run.bench is not None:
        one = {entry.name: entry for entry in run.bench.files if entry.threads == 1 and entry.batch == 1}
        if {"float", "fast"} <= one.keys():
            before, after = one["float"].seconds, one["fast"].seconds
            faster = after < before
            note = format_reduction(before, after, "less time") if faster else "not faster"
            note = note.replace("x less time", "x faster")
            return Card(
                "Latency, measured", format_seconds(after), format_seconds(before),
                f"{note}; one example, one thread", GOOD if faster else BAD,
            )  # fmt: skip
    if run.result is None or run.result.latency_ms is None:
        return None
    if run.result.measured_latency_ms is not None:
        note = f"{run.result.latency_ms:.3g} ms were predicted"
        return Card("Latency, measured", f"{run.result.measured_latency_ms:.3g} ms", "", note)
    return Card("Latency, predicted", f"{run.result.latency_ms:.3g} ms", "", "by the latency table of the budget")


def _verified(run: Run) -> Card:
    if run.verification is None:
        return Card("Integer network", "not verified", "", "bayesbits verify compares it with the trained one")
    if run.verification.failure is not None:
        return Card("Integer network", "not equal", "", "the verification failed, see below", BAD)
    number = run.verification.simulated.inputs
    return Card("Integer network", "proven equal", "", f"to the trained one, on {number:,} examples", GOOD)
