"""The rows of the page's tables, as text; the first cell of a row names what the row is about."""

from __future__ import annotations

from bayesbits.cost import Cost
from bayesbits.deploy.verification.result import RuntimeTensor, SimulatedOutput, Verification
from bayesbits.recipes.result import POSTTRAINING
from bayesbits.records.bench import Bench
from bayesbits.records.front import Front
from bayesbits.records.topology import Topology
from bayesbits.report import formatting
from bayesbits.report.formatting import (
    format_bytes,
    format_count,
    format_percent,
    format_reduction,
    format_seconds,
)
from bayesbits.report.run_data import Run

_METHODS = {
    "bayesian_bits": "Bayesian Bits: bits and channels were learned",
    "bayesian_bits_quantization_only": "Bayesian Bits: bits were learned, no channel was removed",
    "bayesian_bits_pruning_only": "Bayesian Bits: channels were learned, at a fixed bit width",
    POSTTRAINING: "Bayesian Bits after training: bits were learned on a few examples, no weight changed",
}
Row = tuple[str, ...]


def before_and_after(run: Run) -> list[Row]:
    """Metrics and costs: name, float network, compressed network, change."""
    scores = [
        (f"Test {score.name}, {score.direction}", score.float_text or "not trained", score.text, score.change or "")
        for score in (() if run.result is None else run.result.scores)
    ]
    cost, before = run.cost, run.float_cost
    if cost is None or before is None:
        return list(scores)
    relative = [
        (name, "100%", f"{percent:.3g}%", format_reduction(100, percent, "fewer"))
        for name, percent in (
            ("Relative BOPs", cost.relative_bops),
            *((("Relative BOPs, the paper's convention", cost.paper_relative_bops),) if _differ(cost) else ()),
        )
    ]
    absolute = [
        (name, form(old), form(new), "unchanged" if old == new else format_reduction(old, new, comparative))
        for name, form, old, new, comparative in (
            ("BOPs", format_count, before.bops, cost.bops, "fewer"),
            ("MACs", format_count, before.macs, cost.macs, "fewer"),
            ("Parameters", format_count, before.parameters, cost.parameters, "fewer"),
            ("Weights", format_bytes, before.weight_bytes, cost.weight_bytes, "smaller"),
        )
    ]
    return [*scores, *relative, *absolute]


def _differ(cost: Cost) -> bool:
    """Whether the paper's convention gives another number than ours."""
    return f"{cost.relative_bops:.3g}" != f"{cost.paper_relative_bops:.3g}"


def remainder(run: Run) -> Row | None:
    """MACs, share and bytes of everything that is left in float; None where there is nothing."""
    cost = run.cost
    if cost is None:
        return None
    other_bytes = cost.weight_bytes - sum(entry.weight_bytes for entry in cost.parts)
    if not cost.unsupported_macs and not other_bytes:
        return None
    return f"{cost.unsupported_macs:,}", f"{_remaining_share(cost):.1f}%", f"{other_bytes:,}"


def _remaining_share(cost: Cost) -> float:
    return abs(100 - sum(entry.share for entry in cost.parts))  # rounding must not give -0.0


def fixed_channels(topology: Topology) -> list[Row]:
    """Producer, reason and number of channels that cannot be removed."""
    return [(group.name, group.reason, f"{group.size:,}") for group in topology.groups if group.reason is not None]


def unsupported(topology: Topology) -> list[Row]:
    """Name, operation, reason and MACs of everything that is left in float."""
    return [(one.name or "the network", one.what, one.reason, f"{one.macs:,}") for one in topology.unsupported]


def verification(found: Verification) -> list[Row]:
    """What was compared, and how much of it was equal."""
    simulated, machine = found.simulated, found.machine
    exact = [place for place in found.runtime_tensors if place.exact]
    close = [place for place in found.runtime_tensors if not place.exact]
    wrong = sum(tensor.wrong for tensor in found.wrong)
    rows = [
        ("Derived again from plan and weights", str(found.derived)),
        ("In the file", str(found.stored)),
        ("Integer network against training, layer by layer",
         f"{simulated.ties:,} of {simulated.codes:,} activation codes differ beside a tie, {wrong:,} elsewhere"),
        ("End to end", f"{simulated.differing_end_to_end:,} activation codes differ"),
        *((f"{_output(output.name)}, end to end", _ends(output)) for output in simulated.outputs),
        ("Runtime against integer network", f"{_differing(exact)} where all have to be equal bit by bit"),
    ]  # fmt: skip
    if close:
        error = max(place.relative_error for place in close)
        rows.append(("After float operations", f"{_differing(close)}; relative error at most {error:.1e}"))
    rows += [(f"{_output(place.output or '')} of the file, end to end", _ends(place)) for place in found.outputs]
    return [
        *rows,
        ("Integer kernels", f"{len(found.integer_layers)} of {len(found.kernels)} layers"),
        ("Runtime", machine.runtime),
        ("CPU", f"{machine.cpu} ({', '.join(machine.integer_instructions) or 'no instructions for integers'})"),
    ]


def _output(name: str) -> str:
    return "Output" if name in ("", "output") else f"Output {name}"


def _ends(place: SimulatedOutput | RuntimeTensor) -> str:
    """How far an output is off at the end of the network, and whether that changes predictions."""
    error, predictions = place.relative_error_end_to_end, place.predictions_end_to_end
    words = f"off by at most {error:.1e} of the largest value" if error else "equal in every bit"
    if not predictions.classes:
        return words
    same, all_ = predictions.compared - predictions.flipped, predictions.compared
    return f"{words}; the same prediction in {'all' if same == all_ else f'{same:,} of'} {all_:,}"


def _differing(places: list[RuntimeTensor]) -> str:
    differing, values = sum(place.differing for place in places), sum(place.values for place in places)
    return f"{differing:,} of {values:,} values differ"


def differing_tensors(found: Verification) -> list[Row]:
    """Name, codes, and codes that differ beside a tie and elsewhere; the tensors with wrong codes first."""
    tensors = (*found.wrong, *(one for one in found.tied if not one.wrong))
    return [(one.name, f"{one.codes:,}", f"{one.ties:,}", f"{one.wrong:,}") for one in tensors]


def float_kernels(found: Verification) -> list[Row]:
    """Name, operation and reason of the layers that the runtime does not run in integers."""
    kernels = [kernel for kernel in found.kernels if not kernel.integer]
    return [(kernel.layer, kernel.operation, kernel.reason or "") for kernel in kernels]


def points(front: Front) -> list[Row]:
    """Relative bit operations, score and mu of the points of post-training, and whether they are on the front."""
    scored = Front(tuple(point for point in front.points if point.score is not None))
    best = scored.pareto().points if scored.points else ()
    return [
        (
            f"{one.relative_bops:.3g}%",
            "" if one.score is None else f"{one.score:.4g}",
            "" if one.mu is None else f"{one.mu:.2g}",
            "front" if one in best else "",
        )
        for one in sorted(front.points, key=lambda one: one.relative_bops)
    ]


def times(bench: Bench) -> list[Row]:
    """File, threads, batch, time, speed against the float file, and size."""
    floats = {(one.threads, one.batch): one.seconds for one in bench.files if one.name == "float"}
    rows: list[Row] = []
    for one in bench.files:
        before = floats.get((one.threads, one.batch), one.seconds)
        rows.append(
            (one.name, "all" if one.threads is None else str(one.threads), str(one.batch), format_seconds(one.seconds),
             "" if one.name == "float" else _speed(before, one.seconds), format_bytes(one.bytes))
        )  # fmt: skip
    return rows


def _speed(before: float, after: float) -> str:
    """Such as "2.1x faster"; below 2 in percent of the time, such as "20% more time"."""
    if after > before:
        return f"{format_percent(100 * (after / before - 1))} more time"
    return format_reduction(before, after, "faster").replace("% faster", "% less time").replace("not", "no")


def slower_layers(bench: Bench) -> list[Row]:
    """Layer, kernel, time, and time in float of the layers that are slower than in float; the worst first."""
    slower = [one for one in bench.layers if one.seconds > one.float_seconds]
    slower.sort(key=lambda one: one.float_seconds - one.seconds)
    return [(one.layer, one.kernel, format_seconds(one.seconds), format_seconds(one.float_seconds)) for one in slower]


def settings(run: Run) -> list[Row]:
    """What was run, how, and on which machine."""
    recipe, result = run.recipe, run.result
    rows: list[Row] = []
    if recipe is not None:
        rows += [
            ("Recipe", f"{recipe.name}. {recipe.description}" if recipe.description else recipe.name),
            ("Settings from", recipe.source),
            ("Network", recipe.model.name + _parameters(run)),
            ("Trained weights from", recipe.model.checkpoint or ""),
            ("Data", recipe.data.name),
            ("Task", f"{recipe.task.name}; loss {recipe.task.loss_name}"),
            ("Budget", "" if recipe.search.budget is None else str(recipe.search.budget)),
        ]
    if result is not None:
        stages = (
            ("float training", result.float_epochs),
            ("search", result.epochs),
            ("fine-tuning", result.finetune_epochs),
        )
        rows += [
            ("Method", f"{_METHODS.get(result.method, result.method)}; mu = {result.mu:.4g}, seed {result.seed}"),
            ("Epochs", ", ".join(f"{number} of {name}" for name, number in stages if number)),
            ("Training time", f"{formatting.format_duration(result.seconds)} on {result.device}"),
            *((f"Execution of {stage}", str(execution)) for stage, execution in result.executions.items()),
            ("Versions", ", ".join(f"{name} {version}" for name, version in result.versions.items())),
        ]
    return [row for row in rows if row[1]]


def _parameters(run: Run) -> str:
    return "" if run.float_cost is None else f", {format_count(run.float_cost.parameters)} parameters"
