"""The evidence among the results: searches as means over seeds, beside published points.

A search is a file `RECIPE-SETTING-seedN.json` in experiments/results. Those with `validation` in their names had images
held back to choose settings by, and stand in a table of their own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bayesbits.report.paper_points import POINTS

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments" / "results"
BUDGETS = ("6.25% bops", "4% bops", "2.5% bops", "1.5% bops", "half of the 8/8 size", "a third of the 8/8 size")

Result = Mapping[str, Any]
Row = dict[str, Any]


def groups(chosen: bool, folder: Path = EXPERIMENTS) -> dict[str, list[Result]]:
    """The searches by their names without seeds; `chosen`: those that had images held back to choose settings by."""
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if "relative_bops" in result and chosen == ("validation" in path.stem):
            found.setdefault(re.sub(r"-seed\d+$", "", path.stem), []).append(result)
    return found


def rows(chosen: bool, folder: Path = EXPERIMENTS) -> list[Row]:
    """A row for each group of searches; before those of a recipe stand the points that were published for it."""
    found: list[Row] = []
    told: set[str] = set()
    for name, results in groups(chosen, folder).items():
        first = results[0]
        if not chosen:
            found += published(base(first["recipe"]), told)
        float_accuracies = [result["float_accuracy"] for result in results if result["float_accuracy"] is not None]
        epochs = [first["float_epochs"], first["epochs"], first["finetune_epochs"]]
        found.append(
            {
                "search": f"`{name}`",
                "seeds": len(results),
                "epochs": " + ".join(str(number) for number in epochs if number),
                "float": f"{fmean(float_accuracies):.2f}%" if float_accuracies else "",
                "accuracy": f"{mean_and_error([result['accuracy'] for result in results], 2)}%",
                "bit operations": f"{mean_and_error([result['relative_bops'] for result in results], 3)}%",
                "weights": f"{fmean(result['weight_bytes'] for result in results) / 1000:,.0f} kB",
                "seconds": f"{fmean(result['seconds'] for result in results):.0f}",
                "device": first["device"],
            }
        )
    return found


def published(recipe: str, told: set[str]) -> list[Row]:
    """The points of the paper and of later work for a recipe, once."""
    if recipe in told or recipe not in POINTS:
        return []
    told.add(recipe)
    return [
        {
            "search": f"{point.method} ({source}, {recipe})", "seeds": "", "epochs": "", "float": "",
            "accuracy": f"{point.accuracy:.2f}%", "bit operations": f"{point.relative_bops:.2f}%", "weights": "",
            "seconds": "", "device": "",
        }
        for source, points in POINTS[recipe].items() for point in points
    ]  # fmt: skip


def base(recipe: str) -> str:
    """The recipe with the paper's settings for the same network and data."""
    return recipe.removesuffix("-distilled")


def mean_and_error(values: Sequence[float], digits: int) -> str:
    """The mean, and its standard error where there are several values."""
    mean = f"{fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} +- {stdev(values) / sqrt(len(values)):.{digits}f}"


def methods() -> list[Row]:
    """The rows of every method that was trained on VGG-7."""
    results = json.loads((EXPERIMENTS / "methods-cifar10-vgg7.json").read_text())["rows"]
    return [
        {
            "method": row["row"],
            "setting": row["setting"],
            "seed": row["seed"],
            "epochs": row["epochs"],
            "accuracy": f"{row['accuracy']:.2f}%",
            "bit operations": f"{row['relative_bops']:.3f}%",
            "deployed": row["deployed"] if row["deployed"][0].isdigit() else "no",
        }
        for row in results
    ]


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
