"""All methods on one network, with the same data, epochs, optimizer of the weights, and cost counter.

    python -m experiments.methods digits-lenet5
    python -m experiments.methods cifar10-vgg7 --data FOLDER --setting both --epochs 100 --device cuda --jobs 3
    python -m experiments.methods mnist-lenet5 --data FOLDER --setting both --epochs 60 --rows "LSQ 4/4,DQ mu=0.1"

A row is a method with its widths, with its weight of the penalty, or ours with the cost of LSQ as its budget. Settings:
`plain`, the recipe as it is, and `tricks`, the same from trained float weights and with distillation of one half from
them; `both` runs all rows in both, so that what the tricks give is not counted as a method's. The float weights are
trained as in our own recipe, that with `-distilled` behind its name, once for each seed. Every run has a folder of its
own under `--runs`: one that was interrupted goes on, and one that is in the file of results is not repeated. That file,
by default experiments/results/methods-RECIPE.json, is written after every run, and the table is printed at the end;
`--show` prints it without running anything.
The accuracy is that on the test set, looked at once for each row, and decides nothing. With `--jobs` several runs share
the device: their seconds are then longer than those of one that runs alone. `--list` shows the rows.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import bayesbits as bb
from bayesbits.methods import METHODS
from bayesbits.recipes import Recipe, load, names
from bayesbits.recipes.data import open_data
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.process import current_process
from bayesbits.recipes.run import restore
from bayesbits.recipes.run_folder import METRICS
from bayesbits.recipes.toml import to_table
from bayesbits.training.metrics import read_metrics
from bayesbits.utils.files import write_atomically
from bayesbits.utils.tables import text_table
from experiments.tasks import Task, number_of_jobs, run_tasks, wrong_options

RESULTS = Path(__file__).parent / "results"
SETTINGS = ("plain", "tricks")
BOTH = "both"
FLOAT_SPEC = ("spec.prune=false", "spec.input_bits=32", "spec.residual_bits=none", 'spec.rules={"*"={bits=32}}')
FLOAT_ROW = "FP32"
DISTILLATION = 0.5
OURS = "bayesian_bits"


@dataclass(frozen=True)
class Row:
    """A row of the table: how it is called, and the settings of the recipe that it changes."""

    name: str
    overrides: tuple[str, ...]
    cost_of: tuple[str, ...] = ()
    """What a row of fixed widths changes; its cost is the budget of this one."""


def fixed(method: str, weights: int, activations: int, edge_bits: int | None = None) -> Row:
    """A method at fixed widths; with `edge_bits` the first and the last layer have others, as in the original."""
    name = f"{METHODS[method].title} {weights}/{activations}"
    overrides = (f"spec.method={method}", f"spec.weight_bits={weights}", f"spec.activation_bits={activations}")
    if edge_bits is None:
        return Row(name, overrides)
    ends = "float ends" if edge_bits == 32 else f"{edge_bits}-bit ends"
    return Row(f"{name} ({ends})", (*overrides, f"spec.edge_bits={edge_bits}"))


def learned(method: str, mu: float) -> Row:
    """A method that learns the widths, with a weight of the penalty."""
    return Row(f"{METHODS[method].title} mu={mu:g}", (f"spec.method={method}", f"search.mu={mu:g}"))


def at_cost_of(row: Row) -> Row:
    """Ours with the cost of a row of fixed widths as its budget."""
    return Row(f"{METHODS[OURS].title} at the cost of {row.name}", (f"spec.method={OURS}",), row.overrides)


def rows() -> list[Row]:
    """All rows, ours last."""
    found = [Row(FLOAT_ROW, FLOAT_SPEC)]
    for method, widths in FIXED.items():
        if method in METHODS:
            found += [fixed(method, *pair) for pair in widths]
            if (edge_bits := METHODS[method].edge_bits) is not None:
                found += [fixed(method, *pair, edge_bits) for pair in widths if pair[0] < 8]
    for method, mus in LEARNED.items():
        if method in METHODS:
            found += [learned(method, mu) for mu in mus]
    return found + [at_cost_of(fixed("lsq", *pair)) for pair in FIXED["lsq"] if pair[0] < 8]


FIXED = {
    "qt": [(8, 8)],
    "lsq": [(8, 8), (4, 4), (2, 2)],
    "pact": [(4, 4), (2, 2)],
    "tqt": [(8, 8), (4, 4)],
    "twn": [(2, 32)],
    "lrnet": [(2, 32)],
    "lrnet_binary": [(2, 32)],
    "rq": [(8, 8), (4, 4)],
    "wage": [(2, 8)],
}
LEARNED = {
    "dq": [0.01, 0.1, 1.0],
    "dq_restricted": [0.01, 0.1, 1.0],
    "fracbits": [0.01, 0.1, 1.0],
    "learned_width": [0.01, 0.1, 1.0],
    "reinforce": [0.01],
    OURS: [0.01, 0.1],
}


@dataclass(frozen=True)
class Comparison:
    """What all rows of a table share."""

    recipe: str
    """The name of the recipe."""
    data: str | None = None
    """The folder of the data set."""
    epochs: int | None = None
    """The epochs of the search; by default those of the recipe."""
    float_epochs: int | None = None
    """The epochs of the float start; by default those of our own recipe, but no more than those of the search."""
    overrides: tuple[str, ...] = ()
    """What all rows change of the recipe."""

    def recipe_of(self, row: Row, setting: str, seed: int) -> Recipe:
        """The recipe of a run."""
        common = (*([f"data.folder={self.data}"] if self.data else []), *self.overrides)
        epochs = [f"search.epochs={self.epochs}"] if self.epochs else []
        own = [f"seed={seed}", *common, *epochs, *row.overrides]
        budget = _cost_under(self.recipe, (*common, *row.cost_of)) if row.cost_of else None
        plain = load(self.recipe, own, budget=budget)
        if setting == "plain":
            return plain
        tricks = {"float": self._float_start(plain), "search": {"distillation": DISTILLATION}}
        return load(self.recipe, [*own, tricks], budget=budget)

    def _float_start(self, plain: Recipe) -> dict[str, Any]:
        """The table `[float]` of the recipe with which ours starts from a float network."""
        ours, search = f"{self.recipe}-distilled", to_table(plain)["search"]
        table = to_table(load(ours)).get("float") if ours in names() else to_table(plain).get("float")
        as_in_search = {key: search[key] for key in ("precision", "channels_last", "compile", "cuda_graph")}
        own: int = (table or search)["epochs"]
        return {**(table or {}), **as_in_search, "epochs": self.float_epochs or min(own, search["epochs"])}

    def command(self, setting: str, seed: int) -> str:
        """The command that runs all rows of a setting and a seed."""
        words = ["python", "-m", "experiments.methods", self.recipe, *(["--data", "FOLDER"] if self.data else [])]
        words += ["--setting", setting, *(["--epochs", str(self.epochs)] if self.epochs else [])]
        words += ["--float-epochs", str(self.float_epochs)] if self.float_epochs else []
        words += [word for override in self.overrides for word in ("--set", override)]
        words += ["--results", "FILE"] if self.float_epochs or self.overrides else []
        return shlex.join([*words, "--seeds", str(seed)])

    def tasks(self, rows: Sequence[Row], settings: Sequence[str], seeds: Sequence[int], path: Path) -> list[Task]:
        """The runs of rows, each of which becomes a row of a file of results."""
        every = product(dict.fromkeys(seeds), settings, rows)
        return [self._task(row, setting, seed, Results(path)) for seed, setting, row in every]

    def _task(self, row: Row, setting: str, seed: int, results: "Results") -> Task:
        recipe = self.recipe_of(row, setting, seed)
        about = {"row": row.name, "setting": setting, "seed": seed, "command": self.command(setting, seed)}
        before = results.find(row, setting, seed, recipe.search.epochs)
        outdated = (before or {}).get("outdated", "")
        again = f"{outdated} {crc32(json.dumps(before).encode()):08x}" if outdated else ""
        label = f"{self.recipe}: {row.name}, {setting}, {recipe.search.epochs} epochs, seed {seed}"
        return Task(
            label, recipe, kept=before is not None and not outdated,
            measure=partial(measured, about), store=results.add, again=again,
        )  # fmt: skip


@cache
def _cost_under(name: str, overrides: tuple[str, ...]) -> str:
    """The cost of a recipe's network under a spec of fixed widths, as a budget."""
    recipe = load(name, overrides)
    try:
        loaders = open_data(recipe.data, current_process("cpu"), recipe.seed, labeled=False)
    except FileNotFoundError as error:
        message = f"the cost of LSQ is measured on images: give --data the folder of the data sets. {error}"
        raise FileNotFoundError(message) from error
    model, _ = build_model(recipe.model.name, recipe.model.options, loaders.classes)
    return f"{bb.attach(model, loaders.example, recipe.spec).cost().relative_bops!r}% bops"


def chosen(wanted: Sequence[str]) -> list[Row]:
    """The rows that are asked for, by names or methods; all where none are."""
    every = rows()
    if not wanted:
        return every
    found: list[Row] = []
    for word in wanted:
        same = [row for row in every if word == row.name or f"spec.method={word}" in row.overrides]
        if not same:
            raise ValueError(f"there is no row {word!r}; the rows are: {'; '.join(row.name for row in every)}")
        found += same
    return list(dict.fromkeys(found))


def settings_of(setting: str) -> tuple[str, ...]:
    """The settings that a word means."""
    if setting not in (*SETTINGS, BOTH):
        raise ValueError(f"there is no setting {setting!r}; the settings are {', '.join(SETTINGS)} and {BOTH}")
    return SETTINGS if setting == BOTH else (setting,)


def measured(about: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The row of a finished run."""
    finished = restore(folder, "cpu")
    result = finished.result
    lines = [line for line in read_metrics(folder / METRICS) if line["phase"] == "search" and "seconds" in line]
    return {
        **about,
        "method": result.method,
        "epochs": result.epochs,
        "accuracy": result.accuracy,
        "float_accuracy": result.float_accuracy,
        "relative_bops": result.relative_bops,
        "relative_bops_8_bit_ends": _with_narrow_ends(finished.compressor, finished.plan),
        "weight_bytes": result.weight_bytes,
        "seconds_an_epoch": round(lines[-1]["seconds"] / result.epochs, 2) if lines else None,
        "deployed": _deployed(finished.compressor),
        "device": result.device,
        "bits": dict(finished.plan.bits),
    }


def _with_narrow_ends(compressor: bb.Compressor, plan: bb.Plan) -> float | None:
    """The cost if the first and the last layer, which are in float here, had 8 bits: the paper's second counting."""
    if compressor.spec.edge_bits != 32:
        return None
    narrow = {name: min(bits, 8) if name in _edges(compressor) else bits for name, bits in plan.bits.items()}
    return compressor.cost(bb.Plan(narrow, plan.kept)).relative_bops


def _edges(compressor: bb.Compressor) -> set[str]:
    topology = compressor.topology
    inputs = {activation.name for activation in topology.activations if activation.network_input}
    first = [layer for layer in topology.layers if layer.activation in inputs]
    ends = first + [topology.layer(name) for name in topology.output_layers]
    return {layer.parameter for layer in ends} | {layer.activation for layer in ends}


def _deployed(compressor: bb.Compressor) -> str:
    """How many layers compute with integers when deployed, or why the network is not deployed."""
    try:
        layers = bb.deploy(compressor).integer.layers
    except ValueError as error:
        return f"no: {error}"
    return f"{sum(layer.arithmetic == 'integer' for layer in layers)} of {len(layers)} layers in integers"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as a table."""
    head = ("method", "setting", "seed", "epochs", "accuracy", "rel. BOPs", "8-bit ends", "s/epoch", "deployed")
    cells = []
    for one in results:
        ends = one["relative_bops_8_bit_ends"]
        deployed = one["deployed"] if one["deployed"][0].isdigit() else one["deployed"].split(":")[1].strip()
        cells.append(
            (one["row"], one["setting"], str(one["seed"]), str(one["epochs"]), f"{one['accuracy']:.2f}%",
             f"{one['relative_bops']:.3f}%", "" if ends is None else f"{ends:.3f}%",
             str(one["seconds_an_epoch"] or ""), deployed)
        )  # fmt: skip
    return text_table(head, cells, left=(0, 1, 8))


class Results:
    """The file of results: a list of rows, each with the command that makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that the file has now."""
        return list(json.loads(self.path.read_text())["rows"]) if self.path.exists() else []

    def find(self, row: Row, setting: str, seed: int, epochs: int) -> dict[str, Any] | None:
        """The row of a run; `outdated` in one, if there is no other, says what was changed of its method later."""
        key = (row.name, setting, seed, epochs)
        return min((one for one in self.rows if self._key(one) == key), key=lambda one: "outdated" in one, default=None)

    def add(self, result: dict[str, Any]) -> str:
        """Add a row, and write the file; a row of the same run is replaced. Returns the row in a few words."""
        kept = [one for one in self.rows if self._key(one) != self._key(result)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, (json.dumps({"rows": [*kept, result]}, indent=1) + "\n").encode())
        return summary(result)

    @staticmethod
    def _key(one: Mapping[str, Any]) -> tuple[str, str, int, int]:
        return one["row"], one["setting"], one["seed"], one["epochs"]


def summary(result: Mapping[str, Any]) -> str:
    """A row in a few words."""
    return f"{result['accuracy']:.2f}% at {result['relative_bops']:.3f}%, deployed: {result['deployed'][:60]}"


def results_file(recipe: str, folder: Path = RESULTS) -> Path:
    """The file of results of a recipe."""
    return folder / f"methods-{recipe}.json"


def split_words(text: str) -> list[str]:
    """The words of an option, which have commas between them."""
    return [word.strip() for word in text.split(",")]


def read_seeds(text: str) -> list[int]:
    """The value of `--seeds`."""
    return [int(word) for word in split_words(text)]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="such as digits-lenet5, cifar10-vgg7 or mnist-lenet5")
    parser.add_argument("--data", help="the folder of the data set, data.folder of the recipe")
    parser.add_argument("--setting", choices=(*SETTINGS, BOTH), default="plain")
    parser.add_argument("--rows", type=split_words, default=[], help="names with commas; a method means its rows")
    parser.add_argument("--epochs", type=int, help="epochs of the search; by default those of the recipe")
    parser.add_argument("--float-epochs", type=int, help="by default those of our recipe, no more than --epochs")
    parser.add_argument("--seeds", type=read_seeds, default=[0], help="such as 0,1,2")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all rows")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=number_of_jobs, default=1, help="how many runs share the device")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--results", type=Path, help="the file of results")
    parser.add_argument("--show", action="store_true", help="print the table of the results that there are")
    parser.add_argument("--list", action="store_true", help="list the rows")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    options = parse(arguments)
    if options.list:
        print("\n".join(row.name for row in rows()))
        return
    path, left = options.results or results_file(options.recipe), 0
    if options.show and not path.exists():
        raise SystemExit(f"there are no results: {path} is not there")
    if not options.show:
        if options.results is None and (options.set or options.float_epochs):
            changed = "--set and --float-epochs change the recipe"
            raise SystemExit(f"{changed}, and {path} is of the recipe as it is; give --results another file")
        shared = Comparison(options.recipe, options.data, options.epochs, options.float_epochs, tuple(options.set))
        with wrong_options():
            tasks = shared.tasks(chosen(options.rows), settings_of(options.setting), options.seeds, path)
        left = run_tasks(tasks, options.runs / options.recipe, jobs=options.jobs, device=options.device)
    print(table(Results(path).rows))
    sys.exit(left > 0)


if __name__ == "__main__":
    main()
