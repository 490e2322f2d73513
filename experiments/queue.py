"""Runs that the tables of evidence lack, as one queue: searches, ablations, and rows of other methods.

    python -m experiments.queue --data FOLDER --device cuda --jobs 4
    python -m experiments.queue --data FOLDER --list

experiments/queue.toml says which runs belong to the tables, and in which order they run. What has results in
experiments/results is left out, so that the same command goes on where it was stopped, and on another machine with what
is missing there. Every run is kept as soon as it ends: a search as `experiments.keep` does, with its ONNX files tested
on the whole test set where the list says so, and another method's as a row of `experiments.methods`. A search that was
kept before without that test is not repeated for it. FOLDER holds `mnist`, `fashion_mnist` and `cifar-10-batches-py`.
With `--jobs` several runs share the device; on a GPU that gains under NVIDIA MPS.
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
from bayesbits.utils.files import write_atomically
from experiments import whole_test_set
from experiments.keep import RESULTS, command_of, file_of, kept, text_of
from experiments.methods import Comparison, chosen, results_file, settings_of
from experiments.tasks import Task, number_of_jobs, run_tasks, wrong_options

QUEUE = Path(__file__).with_name("queue.toml")
_KEYS = {
    "runs": {"runs", "seeds", "files"},
    "methods": {"methods", "rows", "setting", "epochs", "seeds"},
}
_LISTS = {"rows": '["LSQ 2/2"]', "seeds": "[0, 1]"}

Measured = tuple[dict[str, Any], tuple[str, dict[str, Any]] | None]
"""What is kept of a search: its result, and the name and the content of the file about its ONNX files."""


def read_tasks(path: Path, data: str | None, results: Path) -> list[Task]:
    """The tasks of a list, in their order; a run that two entries name is one."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("tasks")
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    if not entries or not isinstance(entries, list):
        raise ValueError(f"{path} has no [[tasks]]")
    found: dict[str, Task] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            kind = _kind_of(entry)
            own = _searches(entry, path.parent, data, results) if kind == "runs" else _methods(entry, data, results)
            for task in own:
                _check_same(task, found.setdefault(task.label, task))
        except ValueError as error:
            raise ValueError(f"{path}, [[tasks]] number {number}: {error}") from error
    return list(found.values())


def _kind_of(entry: Mapping[str, Any]) -> str:
    """Whether an entry is of `runs` or of `methods`; its keys are checked."""
    kinds = [kind for kind in _KEYS if kind in entry]
    if len(kinds) != 1 or (unknown := set(entry) - _KEYS[kinds[0]]):
        known = "; or ".join(", ".join(sorted(keys)) for keys in _KEYS.values())
        wrong = "it has neither runs nor methods, or both" if len(kinds) != 1 else f"unknown: {', '.join(unknown)}"
        raise ValueError(f"{wrong}; its keys are {known}")
    for key in ("rows", "seeds"):
        if key in entry and (not isinstance(entry[key], list) or not entry[key]):
            raise ValueError(f"{key} is {entry[key]!r}, and takes a list, such as {_LISTS[key]}")
    return kinds[0]


def _check_same(task: Task, other: Task) -> None:
    """Refuse two runs whose results would have one name."""
    commands = {command_of(task.recipe), command_of(other.recipe)}
    if len(commands) > 1:
        raise ValueError(f"two runs would be kept as {task.label}: {' and '.join(map(repr, sorted(commands)))}")


def _methods(entry: Mapping[str, Any], data: str | None, results: Path) -> list[Task]:
    recipe: str = entry["methods"]
    comparison = Comparison(recipe, data, entry.get("epochs"))
    rows, settings = chosen(entry.get("rows", ())), settings_of(entry.get("setting", "plain"))
    return comparison.tasks(rows, settings, entry.get("seeds", [0]), results_file(recipe, results))


def _searches(entry: Mapping[str, Any], beside: Path, data: str | None, results: Path) -> list[Task]:
    overrides = () if data is None else (f"data.folder={data}",)
    options = SweepOptions(recipes=(str(beside / entry["runs"]),), overrides=overrides, output=Path())
    recipes = [run.recipe for run in planned_runs(options)]
    seeds = {recipe.seed for recipe in recipes}
    wanted = set(entry.get("seeds", seeds))
    if not wanted <= seeds:
        raise ValueError(f"seeds are {sorted(wanted)}, and those of {entry['runs']} are {sorted(seeds)}")
    return [_search(recipe, entry.get("files", False), results) for recipe in recipes if recipe.seed in wanted]


def _search(recipe: Recipe, files: bool, results: Path) -> Task:
    path = file_of(recipe, results)
    return Task(
        path.stem, recipe, kept=path.exists(),
        measure=partial(measured, files=files), store=partial(store, recipe, results),
    )  # fmt: skip


def measured(folder: Path, files: bool) -> Measured:
    """The result of a finished search, and what its ONNX files decide on the whole test set."""
    return kept(folder), whole_test_set.compare(folder) if files else None


def store(recipe: Recipe, results: Path, found: Measured) -> str:
    """Write the files of a search; returns its result in a few words."""
    content, tested = found
    if tested is not None:
        whole_test_set.write(*tested, results)
    write_atomically(file_of(recipe, results), text_of(content).encode())  # last: the run is kept once it is there
    return f"{content['accuracy']:.2f}% at {content['relative_bops']:.3f}%"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of the data sets")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=number_of_jobs, default=1, help="how many runs share the device")
    parser.add_argument("--queue", type=Path, default=QUEUE, help="another list than experiments/queue.toml")
    parser.add_argument("--runs", type=Path, default=Path("runs/queue"), help="the folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="list what is missing, and run nothing")
    options = parser.parse_args(arguments)
    with wrong_options():
        tasks = read_tasks(options.queue, options.data, options.results)
    if options.list:
        missing = [task.label for task in tasks if not task.kept]
        print("\n".join([*missing, f"{len(missing)} of {len(tasks)} runs are missing"]))
        return
    sys.exit(run_tasks(tasks, options.runs, jobs=options.jobs, device=options.device) > 0)


if __name__ == "__main__":
    main()
