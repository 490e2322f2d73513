"""Several runs compared: the chart of metric over cost with the means over seeds, tables, and their plans.

Runs that differ in nothing but the seed are one point with a band. Runs of one recipe and method are one line. What a
folder of post-training has learned is a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from bayesbits.report.chart import STYLES, Chart, Series
from bayesbits.report.formatting import format_bytes, format_part, format_reduction
from bayesbits.report.layer_table import Cell, bits_word
from bayesbits.report.network_graph import running_numbers
from bayesbits.report.paper_points import OTHERS, PAPER, POINTS
from bayesbits.report.run_data import Run
from bayesbits.report.seed_groups import Group, bops_of, groups_of, line_of, metric_of, score_of, setting_of
from bayesbits.utils.short_names import shorten_names

_NAME_LENGTH = 24
_MARKS = "-_ "


def run_names(runs: Sequence[Run]) -> list[str]:
    """Names of runs that differ: the folder's last parts, as many as it takes, without what all begin with."""
    parts = [run.folder.resolve().parts for run in runs]
    for number in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-number:]) for part in parts]
        if len(set(names)) == len(names):
            break
    if len(names) > 1:  # those of a sweep begin with its recipe
        pairs = enumerate(zip(min(names), max(names), strict=False))
        shared = next((place for place, (one, other) in pairs if one != other), min(map(len, names)))
        shared = max(names[0].rfind(mark, 0, shared) for mark in _MARKS) + 1
        names = [name[shared:] for name in names]
    return shorten_names(names, _NAME_LENGTH, "…") if runs else []


def comparison_chart(runs: Sequence[Run]) -> Chart | None:
    """The metric over the cost, with the paper's points where the recipe has some; None without a finished run."""
    metric, groups = metric_of(runs), groups_of(runs)
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    series: list[Series] = []
    for name in dict.fromkeys(group.name for group in groups):
        own = [group for group in groups if group.name == name]
        several = any(len(group.runs) > 1 for group in own)
        band = [(group.cost.mean, *group.span) for group in own] if several else []
        series.append(
            Series(
                name, [group.place for group in own], len(series) % STYLES + 1, line=len(own) > 1,
                dots=True, notes=[_note(group, names) for group in own], band=band,
            )
        )  # fmt: skip
    for run in runs:
        series += _front(run, names[id(run)], len(series))
    for kind in (PAPER, OTHERS):
        points = [point for recipe in _recipes(runs) for point in POINTS.get(recipe, {}).get(kind, ())]
        if points and metric is not None and metric[0] == "accuracy":
            places = [(point.relative_bops, point.accuracy) for point in points]
            notes = [
                f"{kind}: {one.method}, {one.accuracy:.2f}% at {one.relative_bops:g}% of BOPs" for one in points
            ]  # fmt: skip
            series.append(Series(kind, places, len(series) % STYLES + 1, line=False, notes=notes))
    unit = "" if metric is None else metric[1]
    title = "Score over cost" if metric is None else f"{metric[0][:1].upper()}{metric[0][1:]} over cost"
    chart = Chart(
        title, "relative bit operations, %", series, unit=unit, x_unit="%", x_logarithmic=True, from_zero=False,
        note="" if metric is None else f"{'Higher' if metric[2] else 'Lower'} is better; left is cheaper.",
    )  # fmt: skip
    return chart if chart.shown else None


def table(runs: Sequence[Run]) -> list[list[Cell]]:
    """A row for every run: name, metric, BOPs, change, size, latency, whether it is best, setting, seed, and recipe."""
    metric, names = metric_of(runs), run_names(runs)
    best = set(map(id, best_runs(runs)))
    rows = []
    for run, name in zip(runs, names, strict=True):
        result = run.result
        if result is None:
            state = "failed" if run.failed else "not finished" if run.unfinished else "damaged"
            numbers = [Cell("", 1e18)] * 5
            rows.append(
                [Cell(name, name), *numbers, Cell("", ""), Cell(state, state), Cell("", 1e18), Cell(run.name, run.name)]
            )
            continue
        score = result.scores[0]
        time = None if run.bench is None else _seconds(run)
        comparable = metric is not None and score.name == metric[0]
        rows.append(
            [
                Cell(name, name),
                Cell(score.text if comparable else f"{score.name} {score.text}", score.value),
                Cell(f"{result.relative_bops:.3g}%", result.relative_bops),
                Cell(score.change or "", 0.0 if score.float_value is None else score.value - score.float_value),
                Cell(format_bytes(result.weight_bytes), result.weight_bytes),
                Cell("" if time is None else f"{1e3 * time:.3g} ms", 1e18 if time is None else time),
                Cell("best" if id(run) in best else "", "best" if id(run) in best else ""),
                Cell(setting_of(run), setting_of(run)),
                Cell(str(result.seed), result.seed),
                Cell(line_of(run), line_of(run)),
            ]
        )
    return rows


def best_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs than which no other run is as cheap and better, or as good and cheaper."""
    metric = metric_of(runs)
    known = [run for run in runs if run.result is not None and metric and run.result.scores[0].name == metric[0]]
    sign = 1 if metric is None or metric[2] else -1

    def beaten(one: Run, other: Run) -> bool:
        mine, its = (bops_of(one), -sign * score_of(one)), (bops_of(other), -sign * score_of(other))
        return its != mine and its[0] <= mine[0] and its[1] <= mine[1]

    return [run for run in known if not any(beaten(run, other) for other in known)]


@dataclass(frozen=True)
class PlanRow:
    """A layer, product or table in the plans of all runs: what each decides, in words; None where it has none."""

    layer: str
    cells: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        """Whether the plans that have the layer decide differently."""
        return len({cell for cell in self.cells if cell is not None}) > 1


def plan_rows(runs: Sequence[Run]) -> list[PlanRow]:
    """All layers, products and tables of all runs with a plan, in the order of the first run that has them."""
    decided = [_decided(run) for run in runs]
    return [PlanRow(name, tuple(own.get(name) for own in decided)) for name in dict.fromkeys(chain(*decided))]


def _decided(run: Run) -> dict[str, str]:
    """By layer its weight bits, input bits and kept channels; of a product both operands' bits, of a table its own."""
    cost, topology = run.cost, run.topology
    if cost is None or topology is None:
        return {}
    words = {
        entry.name: f"{bits_word(entry.weight_bits)}/{bits_word(entry.activation_bits)}, "
        + format_part(entry.kept_out, len(topology.layer(entry.name).out_channels))
        for entry in cost.layers
    }
    words |= {one.name: f"{bits_word(one.left_bits)}/{bits_word(one.right_bits)}" for one in cost.products}
    numbers = running_numbers(topology)
    words = {name: words[name] for name in sorted(words, key=lambda name: numbers[name])}
    return words | {one.name: bits_word(one.bits) for one in cost.tables}


def _front(run: Run, name: str, number: int) -> list[Series]:
    """What post-training has learned, as a line."""
    if run.front is None:
        return []
    points = sorted((one for one in run.front.points if one.score is not None), key=lambda one: one.relative_bops)
    notes = [
        f"{name}: {point.score:.5g} at {point.relative_bops:.3g}% of BOPs"
        + ("" if point.mu is None else f", mu {point.mu:.3g}")
        for point in points
    ]
    places = [(point.relative_bops, point.score or 0.0) for point in points]
    return [Series(f"points of {name}", places, number % STYLES + 1, dots=True, notes=notes)] if points else []


def _note(group: Group, names: dict[int, str]) -> str:
    score = group.runs[0].result.scores[0] if group.runs[0].result is not None else None
    unit = "" if score is None else score.unit
    head = f"{group.name}, {group.setting}" if group.setting else group.name
    cost, mean = group.place
    if len(group.runs) == 1:
        text = f"{head}: {mean:.4g}{unit} at {cost:.3g}% of BOPs"
        return f"{text}, {format_reduction(100, cost, 'fewer')} ({names[id(group.runs[0])]})"
    low, high = group.span
    seeds = f"{low:.4g} to {high:.4g}{unit}, {len(group.runs)} seeds"
    return f"{head}: mean {mean:.4g}{unit} ({seeds}) at {cost:.3g}% of BOPs"


def _recipes(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.name for run in runs if run.result is not None))


def _seconds(run: Run) -> float | None:
    """The measured time of one example with one thread."""
    files = () if run.bench is None else run.bench.files
    return next((one.seconds for one in files if (one.name, one.threads, one.batch) == ("fast", 1, 1)), None)
