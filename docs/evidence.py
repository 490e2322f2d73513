"""The tables of evidence among the results: searches as means over seeds, beside published points and targets."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbits.report.paper_points import OTHERS, PAPER, POINTS
from bayesbits.sweeps.estimate import Estimate
from docs.ablations import planned
from docs.searches import EXPERIMENTS, Search, accuracy_text, cost_text, searches, seeds_text
from docs.targets import targets, verdicts

BUDGETS = ("6.25% bops", "4% bops", "2.5% bops", "1.5% bops", "half of the 8/8 size", "a third of the 8/8 size")
COLUMNS = ("search", "seeds", "epochs", "float", "accuracy", "bit operations", "ONNX file", "seconds")
TITLES = {
    "mnist-lenet5": "LeNet-5 on MNIST",
    "cifar10-vgg7": "VGG-7 on CIFAR-10",
    "cifar10-resnet18": "ResNet-18 (3 x 3 stem) on CIFAR-10",
    "cifar10-resnet20": "ResNet-20 on CIFAR-10, from published weights",
    "fashion-lenet5": "LeNet-5 on Fashion-MNIST",
    "digits-lenet5": "LeNet-5 on scikit-learn's digits",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """The searches of a network on a data set, beside published points."""

    title: str
    rows: list[Row]
    notes: list[str]
    """What is said under the table, such as what was reached of the targets."""
    commands: list[str]
    """Those of the first seeds."""


def experiments(folder: Path = EXPERIMENTS) -> list[Table]:
    """A table for every network and data set."""
    apart = {name for _, name, _ in planned()} - {target.search for target in targets()}  # in the table of ablations
    own: dict[str, list[Search]] = {}
    for search in sorted(searches(folder), key=lambda one: (one.recipe, -one.cost.mean)):
        if not search.choosing and search.name not in apart:
            own.setdefault(search.base, []).append(search)
    order = [*(base for base in TITLES if base in own), *(base for base in own if base not in TITLES)]
    return [_table(base, own[base], folder) for base in order]


def _table(base: str, found: Sequence[Search], folder: Path) -> Table:
    reached = verdicts(folder)
    rows = [search_row(one) | {"ONNX file": onnx_accuracy(one, folder), "seconds": one.seconds} for one in found]
    notes = [f"`{one.name}`: {reached[one.name]}" for one in found if one.name in reached]
    return Table(TITLES.get(base, base), [*rows, *published(base)], notes, [one.command for one in found])


def choices(folder: Path = EXPERIMENTS) -> Table:
    """The searches that had images held back to choose settings by."""
    found = [search for search in searches(folder) if search.choosing]
    rows = [
        search_row(one) | {"held-back images": "not kept" if one.held_back is None else f"{one.held_back:.2f}%"}
        for one in found
    ]
    return Table("Settings", rows, [], [one.command for one in found])


def search_row(search: Search) -> Row:
    """What every table of searches has."""
    return {
        "search": f"`{search.name}`",
        "seeds": seeds_text(search.seeds),
        "epochs": search.epochs,
        "float": "" if search.float_accuracy is None else accuracy_text(search.float_accuracy),
        "accuracy": accuracy_text(search.accuracy),
        "bit operations": cost_text(search.cost),
    }


def onnx_accuracy(search: Search, folder: Path = EXPERIMENTS) -> str:
    """The mean accuracy of the ONNX files in onnxruntime on the whole test set; empty where none was tested."""
    paths = (folder / f"whole-test-set-{search.name}-seed{result['seed']}.json" for result in search.results)
    found = [json.loads(path.read_text())["accuracy"]["fast"] for path in paths if path.exists()]
    if not found:
        return ""
    tested = "" if len(found) == search.seeds else f" ({len(found)} of {seeds_text(search.seeds)})"
    return accuracy_text(Estimate.of(found)) + tested


def published(base: str, columns: Sequence[str] = COLUMNS) -> list[Row]:
    """The points of the paper and of later work for a network, in the same columns."""
    rows = []
    for kind in (PAPER, OTHERS):
        for point in POINTS.get(base, {}).get(kind, ()):
            accuracy, cost = ("" if one is None else f" ± {one:.2f}" for one in point.errors or (None, None))
            row = dict.fromkeys(columns, "")
            row |= {columns[0]: f"{point.method} ({kind})", "accuracy": f"{point.accuracy:.2f}{accuracy}%"}
            rows.append(row | {"bit operations": f"{point.relative_bops:.2f}{cost}%"})
    return rows


def budget_searches(folder: Path = EXPERIMENTS) -> list[Row]:
    """Short searches within budgets: the part that is used of each, and points over float, both of all seeds."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in json.loads((folder / "search-budgets.json").read_text()):
        key = row["key"]
        if "budget" in key:
            groups.setdefault((key["network"], key["steps"], key["budget"]), []).append(row)
    rows = []
    for (network, steps, budget), found in sorted(groups.items(), key=lambda one: one[0][:2]):
        points = Estimate.of(row["accuracy"] - row["float_accuracy"] for row in found)
        error = "" if points.error is None else f" ± {points.error:.2f}"
        rows.append({
            "network": network, "steps": f"{steps:,}", "budget": budget, "seeds": seeds_text(len(found)),
            "within it": f"{sum(row['within'] for row in found)} of {len(found)}",
            "least that is used": f"{100 * min(row['used'] for row in found):.1f}%",
            "points over float": f"{points.mean:+.2f}{error}",
            "worst seed": f"{min(points.values):+.2f}",
        })  # fmt: skip
    return rows


def within_budgets() -> list[Row]:
    """Post-training of the ResNets within budgets: the learned plan, and the solver's behind the stroke."""
    found = []
    for path in sorted(EXPERIMENTS.glob("budgets-resnet??.json")):
        result = json.loads(path.read_text())
        by_budget = {(row["method"], row["budget"]): row for row in result["rows"]}
        row = {"network": f"`{path.stem}`", "images": f"{result['images']:,}", "float": result["float_accuracy"]}
        row["8/8"] = by_budget["8/8", BUDGETS[0]]["accuracy"]
        for budget in BUDGETS:
            both = [by_budget.get((method, budget)) for method in ("learned", "solver")]
            row[budget] = " / ".join("-" if one is None else f"{one['accuracy']:.2f}" for one in both)
        found.append(row)
    return found


def within_milliseconds(folder: Path = EXPERIMENTS) -> list[Row]:
    """The same within milliseconds: accuracy, and what was predicted and measured, of every plan."""
    found = []
    for path in sorted(folder.glob("budgets-resnet??-latency.json")):
        result = json.loads(path.read_text())
        for row in result["rows"]:
            limit = row["latency_ms"] / row["used"] if row["used"] else None
            found.append({
                "network": result["model"], "plan": row["method"], "limit, ms": "" if limit is None else f"{limit:.3f}",
                "predicted": f"{row['latency_ms']:.3f}", "measured": f"{row['measured_ms']:.3f}",
                "float file": f"{result['float_ms']:.3f}", "accuracy": f"{row['accuracy']:.2f}%",
                "float": f"{result['float_accuracy']:.2f}%", "images": f"{result['images']:,}",
            })  # fmt: skip
    return found


def minilm() -> list[Row]:
    """all-MiniLM-L6-v2 without training: cosines between the embeddings of the ONNX files and those of float, and the
    milliseconds of one sentence."""
    result = json.loads((EXPERIMENTS / "minilm.json").read_text())
    by_length = {key.removesuffix(", ms"): value for key, value in result["latency"].items() if key.endswith(", ms")}
    return [
        {
            "all-MiniLM-L6-v2": name,
            "mean cosine": f"{row['mean_cosine']:.4f}",
            "smallest": f"{row['smallest_cosine']:.3f}",
            "MB": f"{row['megabytes']:.1f}",
            "MB, compact form": f"{row['compact_megabytes']:.1f}" if "compact_megabytes" in row else "",
            "sentences verified": row.get("verified_sentences", ""),
        }
        | {f"ms, {length}": f"{found[name]:.2f}" if name in found else "" for length, found in by_length.items()}
        for name, row in result["networks"].items()
    ]
