"""The tables and figures on the page of results, made from experiments/results/*.json and benchmarks/results/*.json.

`tables()` gives them as Markdown, by name; `conf.py` puts them where the page says `{{ name }}`. No figure is typed.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs import class_figures, evidence, figures, method_tables
from docs.ablations import ablation_rows
from docs.front_plot import front_plot
from docs.pareto import EXPERIMENTS_SHOWN, Experiment, caption, pareto
from docs.searches import Search
from docs.targets import target_rows

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments" / "results"
BENCHMARKS = ROOT / "benchmarks" / "results"
FRONTS = {  # of the files with AdaRound, at these costs in % of the bit operations
    "posttrain-resnet20-adaround": (4.6, 2.71, 1.8),
    "posttrain-resnet56": (4.75, 2.45, 1.6),
}
ON_A_CPU = {
    "posttrain-resnet20-adaround": "posttrain-resnet20-default-mus-cpu",
    "posttrain-resnet56": "posttrain-resnet56-cpu",
}
METHODS = ("sensitivity", "gates", "gates+ranges", "sensitivity adaround", "gates+ranges adaround")

Row = Mapping[str, Any]


def tables() -> dict[str, str]:
    """Every table and figure, by the name that the page calls it."""
    return {
        "targets": markdown(target_rows()),
        "searches": sections(evidence.experiments()),
        "pareto_mnist": pareto_figure(EXPERIMENTS_SHOWN[0]),
        "pareto_cifar10": pareto_figure(EXPERIMENTS_SHOWN[1]),
        "choices": with_commands(evidence.choices()),
        "budget_searches": markdown(evidence.budget_searches()),
        "learned_beside_fixed": markdown(method_tables.learned_beside_fixed()),
        "methods": sections(method_tables.methods()),
        "ablations": markdown(ablation_rows()),
        "layers": figure_of("layers", figures.layers),
        "gates": figure_of("history", figures.gates),
        "decomposition": decomposition_figure(),
        "fine_tuning": rows_or_words(class_figures.fine_tuning(), "No search with fine-tuning has been kept yet."),
        "classes": classes_figure(),
        "within_budgets": markdown(evidence.within_budgets()),
        "within_milliseconds": markdown(evidence.within_milliseconds()),
        "front_plot": figure(front_plot().svg()),
        "minilm": markdown(evidence.minilm()),
        "whole_test_set": whole_test_set(),
        "fronts": "\n\n".join(front(name, costs) for name, costs in FRONTS.items()),
        "efficientnet": efficientnet(),
        "transformers": transformers(),
        "training": benchmark("training-h200", "training", TRAINING),
        "training_cpu": benchmark("training-cpu", "training", CPU_TRAINING),
        "scaling_cpu": benchmark("training-cpu", "scaling", CPU_TRAINING),
        "deployed": benchmark(
            "deployed-cpu", "deployed", DEPLOYED, lambda row: (row["threads"], row["batch"]) == (1, 1)
        ),
        "networks": benchmark("networks-cpu", "networks", NETWORKS),
        "latency": benchmark("latency-cpu", "latency", LATENCY),
        "equality": benchmark("equality-cpu", "equality", EQUALITY),
        "bandwidth": benchmark("quantizer-h200", "bandwidth", BANDWIDTH),
        "quantizer_gpu": benchmark("quantizer-h200", "quantizer", QUANTIZER, lambda row: row["device"] == "cuda"),
        "quantizer_cpu": benchmark("quantizer-cpu", "quantizer", QUANTIZER),
    }


def sections(tables: Sequence[evidence.Table]) -> str:
    """Tables with their headings and commands."""
    return "\n\n".join(f"### {table.title}\n\n{with_commands(table)}" for table in tables)


def with_commands(table: evidence.Table) -> str:
    """A table, with what was reached and the commands under it."""
    if not table.rows:
        return "None has been kept yet."
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([markdown(table.rows), "", *notes, "", "```bash", *table.commands, "```"])


def rows_or_words(rows: list[dict[str, Any]], words: str) -> str:
    """A table, or what is said where there are no rows."""
    return markdown(rows) if rows else words


def figure(svg: str, words: str = "") -> str:
    """A figure as a part of the page, with words under it."""
    return f"```{{raw}} html\n<figure>{svg}</figure>\n```\n\n{words}".rstrip()


def figure_of(needs: str, draw: Callable[[Search], str]) -> str:
    """A figure of the search that has what it needs."""
    search = figures.chosen(needs)
    return figure(draw(search)) if search is not None else "No result that is kept has what this figure needs."


def pareto_figure(experiment: Experiment) -> str:
    """A plot of accuracy over cost, with what it cannot show under it."""
    plot, below = pareto(experiment)
    svg = plot.svg()  # which decides about the labels
    return figure(svg, caption(plot, below))


def classes_figure() -> str:
    """The change of each class's accuracy, and the answer in words."""
    search = figures.chosen("float_class_accuracies", whole=True)
    if search is None:
        return "No result that is kept has the accuracies of single classes."
    return figure(class_figures.classes(search), class_figures.class_sentence(search))


def decomposition_figure() -> str:
    """The decomposition of a tensor, with the command of its run."""
    found = figures.decompositions()
    if not found:
        return "No decomposition has been kept yet (`python -m experiments.decomposition`)."
    return figure(
        figures.decomposition(found[0]), f"{found[0]['bits']} bits are kept. The run: `{found[0]['command']}`."
    )


def whole_test_set() -> str:
    """Deployed networks and ONNX files on all test images."""
    rows = []
    for path in sorted(EXPERIMENTS.glob("whole-test-set-*.json")):
        result = json.loads(path.read_text())
        unlike = result["decisions_unlike_deployed"]
        rows.append(
            {"network": f"`{path.stem.removeprefix('whole-test-set-')}`", "images": f"{result['images']:,}"}
            | {f"{what}, accuracy": f"{value:.2f}%" for what, value in result["accuracy"].items()}
            | {f"decisions of {what} unlike deployed": count for what, count in unlike.items()}
        )
    return markdown(rows)


def front(name: str, costs: Iterable[float]) -> str:
    """The best accuracy of each method at a cost or below, as the mean over the seeds."""
    result = json.loads((EXPERIMENTS / f"{name}.json").read_text())
    rows = []
    for cost in costs:
        row = {f"{result['model']}, % of the bit operations": f"{cost:g}"}
        for method in METHODS:
            best = [best_within(run["points"], cost) for run in result["methods"][method]]
            row[method] = "-" if None in best else f"{sum(best) / len(best):.2f}"
        rows.append(row)
    eight = [run["points"][0]["accuracy"] for run in result["methods"]["8/8 minmax"]]
    on_a_cpu = json.loads((EXPERIMENTS / f"{ON_A_CPU[name]}.json").read_text())
    told = (
        f"Float has {result['float_accuracy']:.2f}%, 8/8 with min/max ranges {sum(eight) / len(eight):.2f}% at 6.25%. "
        f"A front of gates and ranges took at most {longest(result):.0f} s on {result['device']} with torch "
        f"{result['torch']}, and {longest(on_a_cpu):.0f} s on {on_a_cpu['device']}. "
        f"`experiments/results/{name}.json`, by `{result['command']}`"
    )
    return f"{markdown(rows)}\n\n{told}"


def efficientnet() -> str:
    """EfficientNet-Lite0 after training: what the ONNX files decide, and how long they take."""
    result = json.loads((EXPERIMENTS / "efficientnet-lite0.json").read_text())
    rows = [
        {
            "network": name,
            "% BOPs": f"{row['relative_bops']:.2f}",
            "accuracy": f"{row['accuracy']:.2f}%",
            "points over float": f"{row['points_over_float']:+.2f} +- {row['standard_error']:.2f}"
            if name != "float"
            else "",
            "decisions as float's": f"{row['decisions_equal_to_float']:.1f}%" if name != "float" else "",
            "images learned from": "" if name == "float" else row.get("examples", 1000),
            "images verified": "" if name == "float" else row.get("verified_images", "none yet"),
            "times as fast": f"{row['speed over float']:.2f}" if "speed over float" in row else "",
            "MB": f"{row['megabytes']:.1f}",
        }
        for name, row in result["networks"].items()
    ]
    told = f"`experiments/results/efficientnet-lite0.json`, {result['machine']}. Command: `{result['command']}`."
    return f"{markdown(rows)}\n\n{told}"


def transformers() -> str:
    """Networks of transformers: the share of MACs in integers, the sizes that may change, and what was verified."""
    result = json.loads((EXPERIMENTS / "transformer-networks.json").read_text())
    rows = [
        {
            "network": name,
            "MACs in integers": f"{row['integer']:.1f}%" if row["passed"] else "",
            "with products of activations": _with_products(row.get("products")),
            "sizes that change": ", ".join(row.get("sizes", ())),
            "verified at": "; ".join(row.get("verified", ())),
            "otherwise": _verbatim("; ".join(row["fixed"]) if row["passed"] else f"{row['stage']}: {row['error']}"),
        }
        for name, row in result["networks"].items()
    ]
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    return f"{markdown(rows)}\n\n`experiments/results/transformer-networks.json`, {versions}. Command: " + (
        "`python -m experiments.transformer_networks`."
    )


def _verbatim(message: str) -> str:
    """A message whose asterisks and underscores do not mark emphasis."""
    return re.sub(r"([*_])", r"\\\1", message)


def _with_products(row: Row | None) -> str:
    """The share of MACs in integers where operands of products are quantized too, or the stage that failed and why."""
    if row is None:
        return ""
    return f"{row['integer']:.1f}%" if row["passed"] else f"{row['stage']}: {row['error']}"


def longest(result: Row) -> float:
    """The seconds of the slowest front of gates and ranges."""
    return max(run["seconds"] for run in result["methods"]["gates+ranges"])


def best_within(points: Iterable[Row], cost: float) -> float | None:
    """The best accuracy among the points that cost at most so much; None where there is none."""
    return max((point["accuracy"] for point in points if point["relative_bops"] <= cost), default=None)


TRAINING = {
    "network": "network", "batch": "batch", "what": "what", "ms": "ms", "time / float": "time / float",
    "memory MB": "memory, MB", "memory / float": "memory / float",
    "hours of the paper's ImageNet": "hours of the paper's ImageNet",
}  # fmt: skip
CPU_TRAINING = {name: TRAINING[name] for name in ("network", "batch", "what", "ms", "time / float")}
DEPLOYED = {"network": "network", "file": "file", "ms": "ms", "speed": "times as fast", "MB": "MB", "% BOPs": "% BOPs"}
NETWORKS = {
    "network": "network", "threads": "threads", "float ms": "float, ms", "integer ms": "8/8, ms",
    "speed": "times as fast", "kernels": "kernels of layers",
}  # fmt: skip
LATENCY = {
    "network": "network", "plan": "plan", "predicted ms": "predicted, ms", "measured ms": "measured, ms",
    "error %": "error, %",
}  # fmt: skip
EQUALITY = {
    "network": "network", "file": "file", "inputs": "inputs", "values": "exact values", "differing": "of these differ",
    "integer kernels": "integer kernels", "simulated codes off": "codes that differ end to end",
    "decisions flipped": "decisions that differ end to end",
}  # fmt: skip
BANDWIDTH = {
    "dtype": "dtype", "elements": "elements", "forward / copy": "forward / copy", "backward / copy": "backward / copy",
}  # fmt: skip
QUANTIZER = {
    "elements": "elements", "what": "what", "ms": "ms", "time / ours": "time / ours",
    "memory, copies of x": "memory beside x, in copies of x",
}  # fmt: skip


def benchmark(name: str, table: str, columns: Mapping[str, str], chosen: Callable[[Row], bool] = bool) -> str:
    """A table of a benchmark's record, with the machine, the date and the command under it."""
    record = json.loads((BENCHMARKS / f"{name}.json").read_text())
    rows = [
        {title: row.get(key, "") for key, title in columns.items()} for row in record["tables"][table] if chosen(row)
    ]
    machine = ", ".join(f"{key} {value}" for key, value in record["machine"].items())
    command = record.get("command", f"python -m benchmarks {table}")
    note = f" {record['note']}" if "note" in record else ""
    told = f"`benchmarks/results/{name}.json`, {record['date']}, {machine}. Command: `{command}`.{note}"
    return f"{markdown(rows)}\n\n{told}"


def markdown(rows: list[dict[str, Any]]) -> str:
    """Rows with equal columns as a Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
