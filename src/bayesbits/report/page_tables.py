"""The rows of the page's tables, as text; the first cell of a row names what the row is about."""

from __future__ import annotations

from bayesbits.cost import Cost
from bayesbits.deploy.verification.result import RuntimeTensor, Verification
from bayesbits.recipes.result import POSTTRAINING
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.report.formatting import format_bytes, format_count, format_duration, format_part, format_reduction
from bayesbits.report.layer_figure import LayerBars
from bayesbits.report.run_data import Run

_METHODS = {
    "bayesian_bits": "Bayesian Bits: bits and channels were learned",
    "bayesian_bits_quantization_only": "Bayesian Bits: bits were learned, no channel was removed",
    "bayesian_bits_pruning_only": "Bayesian Bits: channels were learned, at a fixed bit width",
    POSTTRAINING: "Bayesian Bits after training: bits were learned on a few examples, no weight changed",
}
_REMAINDER = "(left in float)"

Row = tuple[str, ...]


def headline(run: Run) -> list[Row]:
    """Name, value and explanation of the three most important numbers."""
    cost, before, score = run.cost, run.float_cost, run.result.scores[0]
    origin = "the search started from scratch"
    if score.float_text is not None:
        origin = f"float network {score.float_text}, {score.change}"
    smaller = format_reduction(before.weight_bytes, cost.weight_bytes, "smaller")
    return [
        (f"Test {score.name}", score.text, f"{origin}; {score.direction}"),
        ("Relative bit operations", f"{cost.relative_bops:.3g}%",
         format_reduction(100, cost.relative_bops, "fewer than at 32 bits")),
        ("Weights", format_bytes(cost.weight_bytes), f"{smaller} than {format_bytes(before.weight_bytes)}"),
    ]  # fmt: skip


def before_and_after(run: Run) -> list[Row]:
    """Metrics and costs: name, float network, compressed network, change."""
    cost, before = run.cost, run.float_cost
    scores = [
        (f"Test {score.name}, {score.direction}", score.float_text or "not trained", score.text, score.change or "")
        for score in run.result.scores
    ]
    relative = [
        (name, "100%", f"{percent:.3g}%", format_reduction(100, percent, "fewer"))
        for name, percent in (
            ("Relative BOPs", cost.relative_bops),
            ("Relative BOPs, the paper's convention", cost.paper_relative_bops),
        )
    ]
    absolute = [
        (name, f"{old:,}", f"{new:,}", format_reduction(old, new, comparative))
        for name, old, new, comparative in (
            ("BOPs", before.bops, cost.bops, "fewer"),
            ("MACs", before.macs, cost.macs, "fewer"),
            ("Parameters", before.parameters, cost.parameters, "fewer"),
            ("Bytes of weights", before.weight_bytes, cost.weight_bytes, "smaller"),
        )
    ]
    return [*scores, *relative, *absolute]


def layer_bars(run: Run) -> list[LayerBars]:
    """What is drawn: every layer, and the operations that are left in float together."""
    bars = []
    for entry in run.cost.layers:
        layer = run.topology.layer(entry.name)
        channels_in, channels_out = len(layer.in_channels), len(layer.out_channels)
        bits = (entry.weight_bits, entry.activation_bits)
        bars.append(LayerBars(entry.name, *bits, entry.kept_in, channels_in, entry.kept_out, channels_out, entry.share))
    if run.cost.unsupported_macs:
        bars.append(LayerBars(_REMAINDER, FLOAT_BITS, FLOAT_BITS, 0, 0, 0, 0, _remaining_share(run.cost)))
    return bars


def layers(run: Run) -> list[Row]:
    """Name, weight bits, input bits, channels in, channels out, MACs, BOPs, share and bytes of every layer."""
    rows: list[Row] = []
    for entry in run.cost.layers:
        layer = run.topology.layer(entry.name)
        rows.append(
            (entry.name, str(entry.weight_bits), str(entry.activation_bits))
            + (format_part(entry.kept_in, len(layer.in_channels)), format_part(entry.kept_out, len(layer.out_channels)))
            + (f"{entry.macs:,}", f"{entry.bops:,}", f"{entry.share:.1f}%", f"{entry.weight_bytes:,}")
        )
    return rows


def remainder(run: Run) -> list[Row]:
    """A row like those of `layers` for everything that is left in float, where there is anything."""
    cost = run.cost
    other_bytes = cost.weight_bytes - sum(entry.weight_bytes for entry in cost.layers)
    if not cost.unsupported_macs and not other_bytes:
        return []
    other_bops = cost.bops - sum(entry.bops for entry in cost.layers)
    numbers = (f"{cost.unsupported_macs:,}", f"{other_bops:,}", f"{_remaining_share(cost):.1f}%", f"{other_bytes:,}")
    return [(_REMAINDER, str(FLOAT_BITS), str(FLOAT_BITS), "", "", *numbers)]


def total(run: Run) -> Row:
    """The last row under those of `layers`."""
    cost = run.cost
    return ("total", "", "", "", "", f"{cost.macs:,}", f"{cost.bops:,}", "100%", f"{cost.weight_bytes:,}")


def _remaining_share(cost: Cost) -> float:
    return abs(100 - sum(entry.share for entry in cost.layers))  # rounding must not give -0.0


def residual_operands(run: Run) -> list[Row]:
    """Name and bits of the operands of residual additions."""
    return [(name, str(run.plan.bits[name])) for name in run.topology.operand_tensors if name in run.plan.bits]


def fixed_channels(run: Run) -> list[Row]:
    """Producer, reason and number of channels that cannot be removed."""
    groups = run.topology.groups
    return [(group.name, group.reason, f"{group.size:,}") for group in groups if group.reason is not None]


def unsupported(run: Run) -> list[Row]:
    """Name, operation, reason and MACs of everything that is left in float."""
    return [(entry.name, entry.what, entry.reason, f"{entry.macs:,}") for entry in run.topology.unsupported]


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
        *((f"Output {output.name}, end to end", f"off by {output.relative_error_end_to_end:.1e} of the largest"
           f"{output.predictions_end_to_end}") for output in simulated.outputs),
        ("Runtime against integer network", f"{_differing(exact)} where all have to be equal bit by bit"),
    ]  # fmt: skip
    if close:
        error = max(place.relative_error for place in close)
        rows.append(("After float operations", f"{_differing(close)}; relative error at most {error:.1e}"))
    rows += [
        (f"Output {place.output} of the file, end to end",
         f"off by {place.relative_error_end_to_end:.1e} of the largest{place.predictions_end_to_end}")
        for place in found.outputs
    ]  # fmt: skip
    return [
        *rows,
        ("Integer kernels", f"{len(found.integer_layers)} of {len(found.kernels)} layers"),
        ("Runtime", machine.runtime),
        ("CPU", f"{machine.cpu} ({', '.join(machine.integer_instructions) or 'no instructions for integers'})"),
    ]


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


def settings(run: Run) -> list[Row]:
    """What was run, how, and on which machine."""
    recipe, result = run.recipe, run.result
    stages = (
        ("float training", result.float_epochs),
        ("search", result.epochs),
        ("fine-tuning", result.finetune_epochs),
    )
    metrics = ", ".join(score.name for score in result.scores)
    rows = [
        ("Recipe", f"{recipe.name}. {recipe.description}" if recipe.description else recipe.name),
        ("Settings from", recipe.source),
        ("Network", f"{recipe.model.name}, {format_count(run.float_cost.parameters)} parameters"),
        ("Trained weights from", recipe.model.checkpoint or ""),
        ("Data", recipe.data.name),
        ("Task", f"{recipe.task.name}; loss {recipe.task.loss_name}, metrics {metrics}"),
        ("Method", f"{_METHODS.get(result.method, result.method)}; mu = {result.mu:g}, seed {result.seed}"),
        ("Epochs", ", ".join(f"{number} of {name}" for name, number in stages if number)),
        ("Training time", f"{format_duration(result.seconds)} on {result.device}"),
        *((f"Execution of {stage}", str(execution)) for stage, execution in result.executions.items()),
        ("Versions", ", ".join(f"{name} {version}" for name, version in result.versions.items())),
    ]
    return [row for row in rows if row[1]]
