"""The page: a run as one HTML file that needs nothing else, no scripts and no other files."""

from __future__ import annotations

from shlex import quote

from bayesbits.recipes.result import POSTTRAINING
from bayesbits.recipes.run_folder import POSTTRAIN, RECIPE
from bayesbits.report.curves import course_figure
from bayesbits.report.elements import code, facts, paragraph, section, table
from bayesbits.report.layers import kept_section, layer_section
from bayesbits.report.markup import Markup, join, tag
from bayesbits.report.numbers import count, duration, size, times
from bayesbits.report.proof import proof_section
from bayesbits.report.reading import Run
from bayesbits.report.style import STYLE

_METHODS = {
    "bayesian_bits": "Bayesian Bits: bits and channels were learned",
    "bayesian_bits_quantization_only": "Bayesian Bits: bits were learned, all channels stay",
    "bayesian_bits_pruning_only": "Bayesian Bits: channels were learned, at a fixed width",
    POSTTRAINING: "Bayesian Bits after training: bits were learned on a few examples, no weight changed",
}
_NOTHING_FROM_ELSEWHERE = "default-src 'none'; style-src 'unsafe-inline'"


def page(run: Run) -> str:
    """The whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_NOTHING_FROM_ELSEWHERE),
        tag("title", _title(run)),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        tag(
            "header",
            tag("h1", _title(run)),
            paragraph(_lead(run), class_="lead"),
            _headline(run),
            *([paragraph(run.result.advice, class_="warning")] if run.result.advice else []),
        ),
        tag(
            "main",
            _before_and_after(run),
            layer_section(run),
            _course_section(run),
            kept_section(run.topology),
            proof_section(run.verification, run.folder),
            _how_section(run),
            _again_section(run),
        ),
    )
    return join([Markup("<!DOCTYPE html>\n"), tag("html", head, "\n", body, lang="en"), "\n"])


def _title(run: Run) -> str:
    return f"{run.recipe.name}: {times(100, run.cost.relative_bops, 'fewer bit operations')}"


def _lead(run: Run) -> str:
    widths = sorted({bits for layer in run.cost.layers for bits in (layer.weight_bits, layer.activation_bits)})
    removable = sum(group.size for group in run.topology.removable_groups)
    return (
        f"{run.recipe.model.name} on {run.recipe.data.name}: {len(run.cost.layers)} layers with "
        f"{', '.join(map(str, widths))} bits, each weight and activation tensor with a width of its own; "
        f"{len(run.plan.removed(run.topology)):,} of {removable:,} removable channels are gone."
    )


def _headline(run: Run) -> Markup:
    result, cost, before = run.result, run.cost, run.float_cost
    score = result.scores[0]
    origin = "the search started from scratch"
    if score.float_text is not None:
        origin = f"float network {score.float_text}, {score.change}"
    bops = times(100, cost.relative_bops, "fewer than at 32 bits")
    smaller = f"{times(before.weight_bytes, cost.weight_bytes, 'smaller')} than {size(before.weight_bytes)}"
    numbers = (
        (f"Test {score.name}", score.text, f"{origin}; {score.direction}"),
        ("Relative bit operations", f"{cost.relative_bops:.3g}%", bops),
        ("Weights", size(cost.weight_bytes), smaller),
    )
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value), tag("dd", note, class_="note"))
            for name, value, note in numbers
        ),
        class_="headline",
    )


def _before_and_after(run: Run) -> Markup:
    result, cost, before = run.result, run.cost, run.float_cost
    rows = [
        *(
            (f"Test {one.name}, {one.direction}", one.float_text or "none trained", one.text, one.change or "")
            for one in result.scores
        ),
        ("Relative BOPs", "100%", f"{cost.relative_bops:.3g}%", times(100, cost.relative_bops, "fewer")),
        ("Relative BOPs, the paper's convention", "100%", f"{cost.paper_relative_bops:.3g}%",
         times(100, cost.paper_relative_bops, "fewer")),
        ("BOPs", f"{before.bops:,}", f"{cost.bops:,}", times(before.bops, cost.bops, "fewer")),
        ("MACs", f"{before.macs:,}", f"{cost.macs:,}", times(before.macs, cost.macs, "fewer")),
        ("Parameters", f"{before.parameters:,}", f"{cost.parameters:,}",
         times(before.parameters, cost.parameters, "fewer")),
        ("Bytes of weights", f"{before.weight_bytes:,}", f"{cost.weight_bytes:,}",
         times(before.weight_bytes, cost.weight_bytes, "smaller")),
    ]  # fmt: skip
    caption = (
        "BOPs: multiply-accumulates (MACs), each times weight bits times activation bits. Weights are "
        "packed, biases have four bytes, batch norm is folded."
    )
    return section("Before and after", table(caption, ("", "float", "compressed", "change"), rows))


def _course_section(run: Run) -> Markup:
    figure = course_figure(run.course)
    if figure is None:
        return section("The course of the training", paragraph("The run kept no metrics."))
    caption = "Loss is that of the task alone, without the price of bits; expectations are those of the gates."
    return section("The course of the training", tag("figure", tag("div", figure, class_="wide")), paragraph(caption))


def _how_section(run: Run) -> Markup:
    recipe, result = run.recipe, run.result
    stages = (
        ("float training", result.float_epochs),
        ("search", result.epochs),
        ("fine-tuning", result.finetune_epochs),
    )
    epochs = ", ".join(f"{number} of {name}" for name, number in stages if number)
    pairs = [
        ("Recipe", f"{recipe.name}. {recipe.description}" if recipe.description else recipe.name),
        ("Settings", recipe.source),
        ("Network", f"{recipe.model.name}, {count(run.float_cost.parameters)} parameters"),
        ("Trained weights from", recipe.model.checkpoint or ""),
        ("Data", recipe.data.name),
        ("Task", _task(run)),
        ("Method", f"{_METHODS.get(result.method, result.method)}; mu = {result.mu:g}, seed {result.seed}"),
        ("Epochs", epochs),
        ("Training", f"{duration(result.seconds)} on {result.device}"),
        *((f"How {stage} ran", str(execution)) for stage, execution in result.executions.items()),
        ("Versions", ", ".join(f"{name} {version}" for name, version in result.versions.items())),
    ]
    return section("How it was made", facts([(name, value) for name, value in pairs if value], "The run"))


def _task(run: Run) -> str:
    task, metrics = run.recipe.task, run.result.scores
    return f"{task.name}; loss {task.loss_name}, judged by {', '.join(score.name for score in metrics)}"


def _again_section(run: Run) -> Markup:
    recipe = tag("details", tag("summary", code(RECIPE), ", every setting written out"), tag("pre", run.recipe_text))
    folder = quote(str(run.folder))
    needed, command = "its data have to be there", f"bayesbits search {RECIPE} --out again"
    if run.result.method == POSTTRAINING:
        needed += f", and what {POSTTRAIN} in the folder says is given as options"
        command = (
            f"bayesbits posttrain {RECIPE} --out again --within {run.cost.relative_bops * 1.001:.4g}"  # not below it
        )
    return section(
        "Make it again",
        paragraph(f"The run, from the recipe below saved as a file; {needed}:"),
        tag("pre", command),
        paragraph("This page, from the folder of the run:"),
        tag("pre", f"bayesbits report {folder}"),
        recipe,
    )
