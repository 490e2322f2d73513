"""Keep the results of finished runs: from a folder of runs, as a sweep leaves it, to experiments/results.

    python -m experiments.keep FOLDER [--results experiments/results] [--classes [--device DEVICE]]

FOLDER holds folders of runs; those that are not finished are named and left out. A run becomes one file, called after
its recipe, the settings in which it differs from it, its mu or budget, and its seed, such as
`cifar10-vgg7-distilled-60epochs-validation-budget0.35-seed0.json`. The file is the run's `result.json` with the command
that repeats it, its last accuracy on images held back from training (`validation_accuracy`, null without such images),
and of seed 0 the `history` of the gates. Its name has of held-back images that there are some, and of fine-tuning the
number of epochs. A file that is there with another command is not overwritten; one without a command, from before
files had one, is. `--classes` tests the networks of runs whose results lack the accuracies of single classes.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesbits.compression.budget import Budget
from bayesbits.recipes import DataConfig, FloatConfig, ModelConfig, Recipe, Result, load, names
from bayesbits.recipes.evaluation import measure_by_class
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.metrics import class_metrics
from bayesbits.recipes.run import restore
from bayesbits.recipes.run_folder import FLOAT, METRICS, RECIPE, RESULT, load_recipe
from bayesbits.recipes.toml import to_table
from bayesbits.sweeps.settings import leaves, value_text
from bayesbits.training import FinetuneConfig, OptimizerConfig, SearchConfig
from bayesbits.training.metrics import read_metrics
from bayesbits.utils.files import write_atomically
from bayesbits.zoo.models import load_checkpoint
from experiments.tasks import wrong_options

RESULTS = Path(__file__).parent / "results"
POINTS = 40
"""The most points of a history."""

# What says nothing about a result, and what a name has in a place of its own.
_LEFT_OUT = ("seed", "name", "description", "source", "data.folder", "data.workers", "model.checkpoint")
_OF_SPEED = ("compile", "cuda_graph", "channels_last", "checkpoint_seconds", "log_steps", "evaluate_epochs")
_OPTIONAL = {"float": "epochs", "search.gates": "lr", "search.ranges": "lr", "finetune": "epochs"}
_COST = ("search.mu", "search.budget", "search.latency_table")
_DATA = " --set data.folder=FOLDER"  # the data are the same, wherever they are found
ANY_BUDGET = "1% bops"
"""With a budget a recipe has other defaults; which one does not matter."""


def changes(recipe: Recipe) -> dict[str, Any]:
    """The settings in which a recipe differs from the one of the package that has its name, by key."""
    base = _base_of(recipe) if recipe.name in names() else {}
    before, after = ({one.key: one.value for one in leaves(table)} for table in (base, to_table(recipe)))
    before = {key: value for key, value in before.items() if value != {}}
    after = {
        key: value for key, value in after.items() if value != {} and not (key.endswith(".skip") and value is False)
    }
    for part, always in _OPTIONAL.items():  # a part that is new differs from its defaults, and is named in any case
        if not any(key.startswith(f"{part}.") for key in before):
            own = {key: value for key, value in _defaults().items() if key.startswith(f"{part}.")}
            before |= {key: value for key, value in own.items() if key in after and key != f"{part}.{always}"}
    return {
        key: after.get(key)
        for key in (*after, *(key for key in before if key not in after))
        if after.get(key) != before.get(key)
        and key not in (*_LEFT_OUT, *_COST)
        and key.rpartition(".")[2] not in _OF_SPEED
        and (base or not key.startswith(("data.", "model.")))
    }


def _base_of(recipe: Recipe) -> dict[str, Any]:
    """The package's recipe of that name, as it is with a budget or another method, but for the method itself."""
    budget = None if recipe.search.budget is None else ANY_BUDGET
    plain = to_table(load(recipe.name, budget=budget))
    base = to_table(load(recipe.name, [f"spec.method={recipe.spec.method}"], budget=budget))
    base["spec"]["method"] = plain["spec"]["method"]
    return base


def _defaults() -> dict[str, Any]:
    """The settings of a recipe in which everything has its default, with the parts that may be missing."""
    optimizers = {"gates": OptimizerConfig(), "ranges": OptimizerConfig()}
    recipe = Recipe(
        "", DataConfig("digits"), ModelConfig("lenet5"),
        float_training=FloatConfig(), search=SearchConfig(**optimizers), finetune=FinetuneConfig(),
    )  # fmt: skip
    return {one.key: one.value for one in leaves(to_table(recipe))}


def name_of(recipe: Recipe) -> str:
    """The name of a run's file of results, without the seed."""
    words = [recipe.name, *_words(changes(recipe))]
    budget = recipe.search.budget
    words.append(f"mu{recipe.search.mu:g}" if budget is None else _budget(budget))
    return "-".join(words)


def _words(changed: Mapping[str, Any]) -> list[str]:
    """The settings of a name, in a few words each."""
    found = []
    for key, value in changed.items():
        if key == "search.epochs":
            found.append(f"{value}epochs")
        elif key == "data.validation":
            found.append("validation")
        elif key == "finetune.epochs":
            found.append(f"finetune{value}epochs")
        elif not key.startswith("finetune."):
            text = "none" if value is None else value_text(value)
            short = key.removeprefix("search.").removeprefix("spec.")
            found.append(re.sub(r"[^\w.]+", "-", f"{short}-{text}").strip("-"))
    return sorted(found, key=lambda word: (not word[0].isdigit(), word != "validation"))


def _budget(budget: Budget) -> str:
    if list(budget.limits) == ["relative_bops"]:
        return f"budget{budget.relative_bops:.2f}"
    return "budget-" + re.sub(r"[^\w.]+", "-", str(budget)).strip("-")


def command_of(recipe: Recipe) -> str:
    """The command that repeats a run; folders and files of this machine are named FOLDER and FILE."""
    words = ["bayesbits", "search", recipe.name]
    overrides = dict(changes(recipe))
    if recipe.search.budget is not None:
        words += ["--budget", str(recipe.search.budget)]
        words += [] if recipe.search.budget.table is None else ["--latency-table", "FILE"]
    elif recipe.name not in names() or recipe.search.mu != load(recipe.name).search.mu:
        overrides["search.mu"] = recipe.search.mu
    if recipe.model.checkpoint is not None:
        overrides["model.checkpoint"] = "FILE"
    if recipe.data.folder is not None:
        overrides["data.folder"] = "FOLDER"
    for key, value in {**overrides, "seed": recipe.seed}.items():
        words += ["--set", f"{key}={'none' if value is None else value_text(value)}"]
    return shlex.join(words)


def history(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The gates of a search at a few times, from its metrics; None where none were written."""
    gates = [line for line in lines if line["event"] == "gates"]
    if not gates:
        return None
    chosen = [gates[round(place * (len(gates) - 1) / (POINTS - 1))] for place in range(POINTS)]
    chosen = [line for place, line in enumerate(chosen) if place == 0 or line is not chosen[place - 1]]
    last = gates[-1]["step"]
    return {
        "part": [round(line["step"] / last, 4) for line in chosen],
        "relative_bops": [float(f"{line['relative_bops']:.4g}") for line in chosen],
        "bits": {name: [line["bits"][name] for line in chosen] for name in gates[-1]["bits"]},
        "kept": {name: [line["kept"].get(name) for line in chosen] for name in gates[-1].get("kept", {})},
        "probabilities": {
            name: {width: [round(line["probabilities"][name][width], 3) for line in chosen] for width in own}
            for name, own in gates[-1]["probabilities"].items()
        },
    }


def kept(folder: Path) -> dict[str, Any]:
    """What is kept of a finished run."""
    Result.load(folder / RESULT)  # a damaged file is refused with the way out
    content: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    recipe = load_recipe(folder)
    lines = read_metrics(folder / METRICS) if (folder / METRICS).exists() else []
    held_back = [line["validation_accuracy"] for line in lines if "validation_accuracy" in line]
    content |= {"command": command_of(recipe), "validation_accuracy": held_back[-1] if held_back else None}
    if recipe.seed == 0 and (gates := history(lines)) is not None:
        content["history"] = gates
    return content


def class_accuracies(folder: Path, device: str | None = None) -> dict[str, tuple[float | None, ...]]:
    """The accuracies of single classes of a finished run, tested again: of the final network, and of the float one."""
    run = restore(folder, device)
    final = measure_by_class(run.compressor.model, run.loaders.test, class_metrics()[:1])
    found = {"class_accuracies": final.class_accuracies}
    checkpoint = run.recipe.model.checkpoint
    if (folder / FLOAT).exists() or checkpoint is not None:
        model = build_model(run.recipe.model.name, run.recipe.model.options, run.loaders.classes)[0]
        load_checkpoint(model, checkpoint or folder / FLOAT)
        model.to(next(run.compressor.model.parameters()).device)
        before = measure_by_class(model, run.loaders.test, class_metrics()[:1])
        found["float_class_accuracies"] = before.class_accuracies
    return found


def file_of(recipe: Recipe, results: Path = RESULTS) -> Path:
    """The file of results of a run; raises where one of that name is of another run."""
    path = results / f"{name_of(recipe)}-seed{recipe.seed}.json"
    before = json.loads(path.read_text(encoding="utf-8")).get("command") if path.exists() else None
    if before is not None and before.replace(_DATA, "") != command_of(recipe).replace(_DATA, ""):
        raise ValueError(
            f"{path} is of another run: `{before}`; this one is `{command_of(recipe)}`. "
            "Rename that file, or keep this run in another folder of --results"
        )
    return path


def keep(folder: Path, results: Path = RESULTS, *, classes: bool = False, device: str | None = None) -> list[Path]:
    """Write the files of all finished runs in a folder, or of the folder itself; prints and returns their paths."""
    runs = [folder] if (folder / RECIPE).is_file() else sorted(path.parent for path in folder.glob(f"*/{RECIPE}"))
    if not runs:
        raise ValueError(f"{folder} holds no runs: a run has a {RECIPE}")
    written = []
    for run in runs:
        if not (run / RESULT).is_file():
            print(f"{run.name}: not finished, left out", file=sys.stderr)
            continue
        recipe, content = load_recipe(run), kept(run)
        if classes and not content.get("class_accuracies"):
            content |= class_accuracies(run, device)
        path = file_of(recipe, results)
        write_atomically(path, text_of(content).encode())
        print(path, flush=True)
        written.append(path)
    return written


def text_of(content: Mapping[str, Any]) -> str:
    """A file of results as JSON; the lists of a history are on one line."""
    found = json.dumps({key: value for key, value in content.items() if key != "history"}, indent=2)
    if "history" in content:
        found = f'{found[:-2]},\n  "history": {json.dumps(content["history"], separators=(",", ":"))}\n}}'
    return found + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--classes", action="store_true", help="test what lacks the accuracies of single classes")
    parser.add_argument("--device", help="for --classes")
    options = parser.parse_args(arguments)
    with wrong_options():
        keep(options.folder, options.results, classes=options.classes, device=options.device)


if __name__ == "__main__":
    main()
