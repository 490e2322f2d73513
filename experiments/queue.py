"""Everything that the tables of evidence still lack, as one queue: searches, ablations, and rows of other methods.

    python -m experiments.queue --data FOLDER --device cuda --jobs 4
    python -m experiments.queue --data FOLDER --list

experiments/queue.toml says what belongs to the tables, and in which order it runs. What has results in
experiments/results is left out, so that the same command goes on where it was stopped, and on another machine with what
is missing there. Every run is kept as soon as it ends: a search as `experiments.keep` does, with its ONNX files tested
on the whole test set where the list says so, and another method's as a row of `experiments.methods`. FOLDER holds
`mnist`, `fashion_mnist` and `cifar-10-batches-py`. Several runs share the device; on a GPU that gains under NVIDIA MPS.
"""

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bayesbits.cli.sweep import SweepOptions, planned_runs
from bayesbits.recipes import Recipe
from bayesbits.recipes.run_folder import load_recipe
from bayesbits.utils.files import write_atomically
from experiments import whole_test_set
from experiments.keep import RESULTS, file_of, kept, text_of
from experiments.methods import Comparison, chosen, results_file, settings_of
from experiments.tasks import Task, run_tasks

QUEUE = Path(__file__).with_name("queue.toml")
_KEYS = {
    "runs": {"runs", "seeds", "files"},
    "methods": {"methods", "rows", "setting", "epochs", "seeds"},
}


def read_tasks(path: Path, data: str | None, folder: Path, results: Path) -> list[Task]:
    """The tasks of a list, in their order; a run that two entries name is one."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("tasks")
    if not entries:
        raise SystemExit(f"{path} has no [[tasks]]")
    found: list[Task] = []
    for number, entry in enumerate(entries, start=1):
        kinds = [kind for kind in _KEYS if kind in entry]
        if len(kinds) != 1 or (unknown := set(entry) - _KEYS[kinds[0]]):
            known = "; or ".join(", ".join(sorted(keys)) for keys in _KEYS.values())
            wrong = "it has neither runs nor methods, or both" if len(kinds) != 1 else f"unknown: {', '.join(unknown)}"
            raise SystemExit(f"{path}, [[tasks]] number {number}: {wrong}; its keys are {known}")
        read = {"runs": _searches, "methods": _methods}[kinds[0]]
        found += read(entry, data, folder, results)
    return list({task.label: task for task in found}.values())


def _methods(entry: Mapping[str, Any], data: str | None, folder: Path, results: Path) -> list[Task]:
    recipe: str = entry["methods"]
    rows = chosen(",".join(entry["rows"]) if "rows" in entry else None)
    comparison = Comparison(recipe, data, entry.get("epochs"))
    settings = settings_of(entry.get("setting", "plain"))
    return comparison.tasks(rows, settings, entry.get("seeds", [0]), results_file(recipe, results))


def _searches(entry: Mapping[str, Any], data: str | None, folder: Path, results: Path) -> list[Task]:
    overrides = () if data is None else (f"data.folder={data}",)
    options = SweepOptions(recipes=(str(QUEUE.parent / entry["runs"]),), overrides=overrides, output=folder)
    recipes = [run.recipe for run in planned_runs(options)]
    recipes = [one for one in recipes if one.seed in entry.get("seeds", [one.seed])]
    return [_search(recipe, entry.get("files", False), results) for recipe in recipes]


def _search(recipe: Recipe, files: bool, results: Path) -> Task:
    path = file_of(recipe, results)
    return Task(
        path.stem, recipe, kept=path.exists(),
        measure=partial(measured, files=files), store=partial(store, results),
    )  # fmt: skip


def measured(folder: Path, files: bool) -> tuple[Recipe, dict[str, Any], tuple[str, dict[str, Any]] | None]:
    """The recipe and the result of a finished search, and what its ONNX files decide on the whole test set."""
    return load_recipe(folder), kept(folder), whole_test_set.compare(folder) if files else None


def store(results: Path, found: tuple[Recipe, dict[str, Any], tuple[str, dict[str, Any]] | None]) -> str:
    """Write the files of a search; returns its result in a few words."""
    recipe, content, tested = found
    if tested is not None:
        whole_test_set.write(*tested, results)
    write_atomically(file_of(recipe, results), text_of(content).encode())  # last: the run is kept once it is there
    return f"{content['accuracy']:.2f}% at {content['relative_bops']:.3f}%"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of the data sets")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs share the device")
    parser.add_argument("--queue", type=Path, default=QUEUE, help="another list than experiments/queue.toml")
    parser.add_argument("--runs", type=Path, default=Path("runs/queue"), help="the folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="list what is missing, and run nothing")
    options = parser.parse_args(arguments)
    tasks = read_tasks(options.queue, options.data, options.runs, options.results)
    if options.list:
        missing = [task.label for task in tasks if not task.kept]
        print("\n".join([*missing, f"{len(missing)} of {len(tasks)} runs are missing"]))
        return
    sys.exit(run_tasks(tasks, options.runs, jobs=options.jobs, device=options.device) > 0)


if __name__ == "__main__":
    main()
