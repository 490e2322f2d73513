"""All methods on one network, with the same data, epochs, optimizer of the weights, and cost counter.

    python -m experiments.methods digits-lenet5
    python -m experiments.methods cifar10-vgg7 --data FOLDER --setting both --epochs 100 --device cuda --jobs 3
    python -m experiments.methods mnist-lenet5 --data FOLDER --setting both --epochs 60 --rows "LSQ 4/4,DQ mu=0.1"

A row is a method with its widths, with its weight of the penalty, or ours with the cost of LSQ as its budget. Settings:
`plain`, the recipe as it is, and `tricks`, the same from trained float weights and with distillation of one half from
them; `both` runs all rows in both, so that what the tricks give is not counted as a method's. The float weights are
trained as in our own recipe, that with `-distilled` behind its name. Every run has a folder of its own under `--runs`:
one that was interrupted goes on, one that has ended is not repeated. The file of results, by default
experiments/results/methods-RECIPE.json, is written after every run, and the table is printed at the end; `--show`
prints it without running anything.
The accuracy is that on the test set, looked at once for each row, and decides nothing. With `--jobs` several runs share
the device: their seconds are then longer than those of one that runs alone. `--list` shows the rows.
"""

import argparse
import json
import re
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bayesbits as bb
from bayesbits.methods import METHODS
from bayesbits.recipes import FloatConfig, Recipe, load, names, run
from bayesbits.recipes.data import open_data
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.process import current_process
from bayesbits.recipes.run import restore, trained_network
from bayesbits.recipes.run_folder import FLOAT, METRICS
from bayesbits.training.metrics import read_metrics
from bayesbits.utils.files import write_atomically
from bayesbits.utils.tables import text_table
from experiments.posttrain import as_typed

RESULTS = Path(__file__).parent / "results"
SETTINGS = ("plain", "tricks")
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


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="such as digits-lenet5, cifar10-vgg7 or mnist-lenet5")
    parser.add_argument("--data", help="the folder of the data set, data.folder of the recipe")
    parser.add_argument("--setting", choices=(*SETTINGS, "both"), default="plain")
    parser.add_argument("--rows", help="names of rows with commas between them; a method's name means all of its rows")
    parser.add_argument("--epochs", type=int, help="epochs of the search; by default those of the recipe")
    parser.add_argument("--float-epochs", type=int, help="epochs of the float start; by default those of the search")
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all rows")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs share the device")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--show", action="store_true", help="print the table of the results that there are")
    parser.add_argument("--list", action="store_true", help="list the rows")
    return parser.parse_args(arguments)


def chosen(wanted: str | None) -> list[Row]:
    """The rows that are asked for."""
    every = rows()
    if wanted is None:
        return every
    found: list[Row] = []
    for word in wanted.split(","):
        word = word.strip()
        same = [row for row in every if word == row.name or f"spec.method={word}" in row.overrides]
        if not same:
            raise SystemExit(f"there is no row {word!r}; the rows are: {'; '.join(row.name for row in every)}")
        found += same
    return found


def settings_of(options: argparse.Namespace) -> list[str]:
    return list(SETTINGS) if options.setting == "both" else [options.setting]


def common(options: argparse.Namespace, seed: int) -> list[str]:
    """What all runs change of the recipe."""
    return [f"seed={seed}", *([f"data.folder={options.data}"] if options.data else []), *options.set]


def recipe_of(options: argparse.Namespace, row: Row, setting: str, seed: int) -> Recipe:
    """The recipe of a run."""
    epochs = [f"search.epochs={options.epochs}"] if options.epochs else []
    budget = _cost_under(options, row.cost_of, seed) if row.cost_of else None
    recipe = load(options.recipe, [*common(options, seed), *epochs, *row.overrides], budget=budget)
    if setting == "plain":
        return recipe
    checkpoint = float_folder(options, seed) / FLOAT
    return replace(
        recipe,
        float_training=None,
        model=replace(recipe.model, checkpoint=str(checkpoint.absolute())),
        search=replace(recipe.search, distillation=DISTILLATION),
    )


def _cost_under(options: argparse.Namespace, overrides: Sequence[str], seed: int) -> str:
    """The cost of the network under a spec of fixed widths, as a budget."""
    recipe = load(options.recipe, [*common(options, seed), *overrides])
    loaders = open_data(recipe.data, current_process("cpu"), seed, labeled=False)
    model, _ = build_model(recipe.model.name, recipe.model.options, loaders.classes)
    return f"{bb.attach(model, loaders.example, recipe.spec).cost().relative_bops!r}% bops"


def float_folder(options: argparse.Namespace, seed: int) -> Path:
    folder: Path = options.runs / options.recipe / f"float-seed{seed}"
    return folder


def float_start(options: argparse.Namespace, seed: int) -> None:
    """Train the float network that all rows with tricks start from, once."""
    folder = float_folder(options, seed)
    if (folder / FLOAT).exists():
        return
    recipe = load(options.recipe, common(options, seed))
    search, ours = recipe.search, f"{options.recipe}-distilled"
    training = (load(ours, ()).float_training if ours in names() else None) or FloatConfig()
    training = replace(
        training, epochs=options.float_epochs or options.epochs or search.epochs, precision=search.precision, seed=seed,
        channels_last=search.channels_last, compile=search.compile, cuda_graph=search.cuda_graph,
    )  # fmt: skip
    trained_network(replace(recipe, float_training=training), folder, device=options.device)


def folder_of(options: argparse.Namespace, row: Row, setting: str, seed: int) -> Path:
    name = re.sub(r"[^\w.]+", "-", row.name).strip("-")
    epochs = f"-{options.epochs}epochs" if options.epochs else ""
    folder: Path = options.runs / options.recipe / f"{name}-{setting}{epochs}-seed{seed}"
    return folder


def run_row(options: argparse.Namespace, row: Row, setting: str, seed: int) -> dict[str, Any]:
    """One run from its data to its row; a failure is a row, too."""
    folder = folder_of(options, row, setting, seed)
    about = {"row": row.name, "setting": setting, "seed": seed}
    try:
        recipe = recipe_of(options, row, setting, seed)
        result = run(recipe, folder, resume=True, device=options.device, progress=False)
        finished = restore(folder, "cpu")
        lines = [line for line in read_metrics(folder / METRICS) if line["phase"] == "search" and "seconds" in line]
        return about | {
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
    except Exception as error:  # the other rows go on
        traceback.print_exc()
        return about | {"error": f"{type(error).__name__}: {error}"}


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


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a table."""
    head = ("method", "setting", "seed", "epochs", "accuracy", "rel. BOPs", "8-bit ends", "s/epoch", "deployed")
    cells = []
    for one in results:
        if "error" in one:
            cells.append((one["row"], one["setting"], str(one["seed"]), "", "", "", "", "", one["error"][:60]))
            continue
        ends = one["relative_bops_8_bit_ends"]
        deployed = one["deployed"] if one["deployed"][0].isdigit() else one["deployed"].split(":")[1].strip()
        cells.append(
            (one["row"], one["setting"], str(one["seed"]), str(one["epochs"]), f"{one['accuracy']:.2f}%",
             f"{one['relative_bops']:.3f}%", "" if ends is None else f"{ends:.3f}%",
             str(one["seconds_an_epoch"] or ""), deployed)
        )  # fmt: skip
    return text_table(head, cells, left=(0, 1, 8))


class Results:
    """The file of results: a list of rows with the command that made them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []

    def has(self, row: Row, setting: str, seed: int, epochs: int | None) -> bool:
        """Whether a run is there, and did not fail."""
        return any(
            self._key(one) == (row.name, setting, seed) and "error" not in one and epochs in (None, one["epochs"])
            for one in self.rows
        )

    def add(self, result: dict[str, Any]) -> None:
        """Add a row with the command of this process, and write the file; a row of the same run is replaced."""
        result = result | {"command": f"python -m experiments.methods {as_typed(sys.argv[1:])}"}
        key = (*self._key(result), result.get("epochs"))
        kept = [one for one in self.rows if (*self._key(one), one.get("epochs")) != key]
        self.rows = [one for one in kept if not (self._key(one) == key[:3] and "error" in one)] + [result]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, (json.dumps({"rows": self.rows}, indent=1) + "\n").encode())

    @staticmethod
    def _key(one: dict[str, Any]) -> tuple[str, str, int]:
        return one["row"], one["setting"], one["seed"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    options = parse(arguments)
    if options.list:
        print("\n".join(row.name for row in rows()))
        return
    results = Results(options.results or RESULTS / f"methods-{options.recipe}.json")
    if not options.show:
        seeds = [int(seed) for seed in options.seeds.split(",")]
        if "tricks" in settings_of(options):
            for seed in seeds:
                float_start(options, seed)
        todo = [
            (options, row, setting, seed)
            for seed in seeds for setting in settings_of(options) for row in chosen(options.rows)
            if not results.has(row, setting, seed, options.epochs)
        ]  # fmt: skip
        for result in _run_all(todo, options.jobs):
            results.add(result)
            print(f"{result['row']}, {result['setting']}, seed {result['seed']}: {summary(result)}", flush=True)
    print(table(results.rows))


def summary(result: dict[str, Any]) -> str:
    """A row in a few words."""
    if "error" in result:
        return str(result["error"])
    return f"{result['accuracy']:.2f}% at {result['relative_bops']:.3f}%, deployed: {result['deployed'][:60]}"


def _run_all(todo: list[tuple[argparse.Namespace, Row, str, int]], jobs: int) -> Any:
    """The results as they come."""
    if jobs == 1:
        yield from (run_row(*one) for one in todo)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(run_row, *one) for one in todo]):
            yield done.result()


if __name__ == "__main__":
    main()
