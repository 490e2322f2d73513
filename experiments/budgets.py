"""Post-training of the pre-trained CIFAR-10 ResNets within budgets: the learned plan beside the solver's, and 8/8.

    python -m experiments.budgets --data FOLDER --model resnet20
    python -m experiments.budgets --data FOLDER --model resnet20 --kinds latency --residual-bits 8 \
        --latency-table table.json --files FILES
    python -m experiments.budgets --data FOLDER --model resnet20 --kinds latency --time FILES

FOLDER is that of `experiments.posttrain`, and so are most options. The budgets are 6.25, 4, 2.5 and 1.5% of the bit
operations, half and a third of the bytes of the network at 8/8, and with `--latency-table` milliseconds at which a half
and nine tenths of what 8/8 saves are saved. One sweep serves for all budgets that limit the same cost: after each of
its points the gates are projected onto each of them, as `bayesbits.posttrain(budget=...)` does for one. `--mus` are the
weights of the penalty where bit operations are limited; for other costs the defaults are taken. Nothing is chosen by
the test images. The result is written after each part, to `results/budgets-MODEL.json`, or
`-MODEL-KIND.json` where one kind of cost is asked for.

With `--files` every row's network, and the float one, is written as an ONNX file. The third command times these in
turn, with one thread, and puts the measured milliseconds beside the predicted ones; the machine has to be idle.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesbits as bb
from bayesbits.baselines.solver import point_of
from bayesbits.baselines.solver_program import WidthProgram
from bayesbits.baselines.solver_scores import gradient_scores
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.runtime import Session, machine
from bayesbits.functional import implementation
from bayesbits.posttraining.budget_points import BudgetPoints
from bayesbits.posttraining.front_points import read_point
from bayesbits.posttraining.losses import BatchLoss, batch_loss
from bayesbits.posttraining.quantizer_state import quantizers_restored
from bayesbits.posttraining.sweep import batch_order, learn_ranges
from bayesbits.records.front import Point
from experiments.posttrain import Bench, as_typed, attached, parse, say

RELATIVE_BOPS = (6.25, 4.0, 2.5, 1.5)
SIZES = {"half of the 8/8 size": 2, "a third of the 8/8 size": 3}
KINDS = ("bops", "bytes", "latency")
PLANNERS = ("solver", "learned")
FLOAT_FILE = "float.onnx"
ROUNDS, CALLS = 40, 10  # of timing: every file in each round, so many times
WAYS = (0.5, 0.9)  # how much of the milliseconds that 8/8 saves


def budgets_of(
    compressor: bb.Compressor, table: bb.LatencyTable | None, percents: Sequence[float]
) -> dict[str, dict[str, bb.Budget]]:
    """The budgets of a network, by the kind of cost and by what they are called in the result."""
    whole = compressor.cost(eight_bits(compressor)).weight_bytes
    found = {
        "bops": {f"{percent:g}% bops": bb.Budget(relative_bops=percent) for percent in percents},
        "bytes": {name: bb.Budget(weight_bytes=whole // part) for name, part in SIZES.items()},
    }
    if table is not None:
        slow, fast = (compressor.cost(plan, table).latency_ms for plan in (None, eight_bits(compressor)))
        assert slow is not None
        assert fast is not None
        limits = {f"{100 * part:g}% of the way to 8/8": slow + part * (fast - slow) for part in WAYS}
        say(f"predicted: float {slow:.4g} ms, 8/8 {fast:.4g} ms")
        found["latency"] = {name: bb.Budget(latency_ms=limit, table=table) for name, limit in limits.items()}
    return found


def eight_bits(compressor: bb.Compressor) -> bb.Plan:
    return bb.Plan.uniform(compressor.topology, 8, 8, residual_bits=compressor.spec.residual_bits)


class Table:
    """The rows of the result, each tested and written when it is known."""

    def __init__(
        self, bench: Bench, compressor: bb.Compressor, loss: BatchLoss, batches: int, path: Path,
        files: Path | None = None, latencies: bb.LatencyTable | None = None,
    ) -> None:  # fmt: skip
        self.bench, self.compressor, self.path = bench, compressor, path
        self.files, self.latencies = files, latencies
        self._loss, self._batches = loss, batches
        self.result: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.correct: list[Tensor] = []  # for every row, of every test image whether it is classified correctly

    def add(self, method: str, name: str, budget: bb.Budget | None, point: Point, seconds: float) -> None:
        """Test a point, and write the result so far."""
        compressor = self.compressor
        with quantizers_restored(compressor.attachment), torch.no_grad():
            bb.restore(compressor, point)
            loss = sum(float(self._loss(index)) for index in range(self._batches)) / self._batches
            correct = self.bench.correct(compressor.model)
            accuracy = 100 * correct.float().mean().item()
            cost = compressor.cost(table=self.latencies)
            file = self._write_file(f"{method.replace('/', '-')} {name.replace('/', '-')}.onnx")
        assert budget is None or budget.allows(cost), f"{method} is not within {budget}"
        row = {"method": method, "budget": name, "relative_bops": cost.relative_bops, "weight_bytes": cost.weight_bytes}
        row |= {} if cost.latency_ms is None else {"latency_ms": cost.latency_ms}
        row |= {"used": None if budget is None else budget.used(cost), "loss": loss, "accuracy": accuracy}
        row |= {} if file is None else {"file": file}
        row |= {"mu": point.mu, "seconds": seconds, "bits": dict(sorted(point.plan.bits.items()))}
        self.rows.append(row)
        self.correct.append(correct)
        costs = f"{cost.relative_bops:.3f}% and {cost.weight_bytes} bytes"
        costs += "" if cost.latency_ms is None else f" and {cost.latency_ms:.4f} ms"
        say(f"{method}, {name}: {accuracy:.2f}% at {costs}, loss {loss:.5f}, {seconds:.0f} s")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write(self.path, {**self.result, "rows": self.rows})

    def _write_file(self, name: str) -> str | None:
        """The name of the ONNX file of the network as it is fixed now."""
        if self.files is None:
            return None
        self.files.mkdir(parents=True, exist_ok=True)
        bb.export_onnx(bb.deploy(self.compressor), self.bench.examples(0)[0][:1], self.files / name)
        return name


def run(bench: Bench, own: argparse.Namespace, path: Path, command: str, seed: int = 0) -> Table:
    """All rows of one network."""
    options = bench.options
    images, _ = bench.examples(seed)
    compressor, inputs = attached(bench, images), list(images.split(options.batch))
    compressor.calibrate(inputs, "mse")
    loss = batch_loss(compressor, options.loss, inputs, [])
    latencies = own.latency_table and bb.LatencyTable.load(own.latency_table)
    table = Table(bench, compressor, loss, len(inputs), path, own.files, latencies)
    table.result = {
        "command": command, "torch": torch.__version__, "device": platform.machine(), "model": options.model,
        "tested_on": "held-out training images" if options.held_out else "test images", "images": len(bench.test),
        "float_accuracy": bench.float_accuracy,
    }  # fmt: skip
    say(f"float: {table.result['float_accuracy']:.2f}%")
    table.add("8/8", "6.25% bops", None, read_point(compressor, eight_bits(compressor)), 0.0)
    if own.files is not None:
        export_float_onnx(bench.network(), images[:1], own.files / FLOAT_FILE)
    kinds = budgets_of(compressor, latencies, own.percents)
    kinds = {kind: budgets for kind, budgets in kinds.items() if kind in own.kinds}
    start = time.perf_counter()
    scores = gradient_scores(compressor, inputs, [], options.loss, None)
    seconds = time.perf_counter() - start
    solved = [entry for budgets in kinds.values() for entry in budgets.items()] if "solver" in own.planners else []
    for name, budget in solved:
        start = time.perf_counter()
        point = point_of(compressor, WidthProgram(compressor.attachment, budget), scores)
        table.add("solver", name, budget, point, seconds + time.perf_counter() - start)
    for kind, budgets in kinds.items() if "learned" in own.planners else ():
        with quantizers_restored(compressor.attachment):
            learned(compressor, inputs, loss, table, budgets, options.mus if kind == "bops" else None, seed)
    return table


def learned(
    compressor: bb.Compressor, inputs: list[Tensor], loss: BatchLoss, table: Table, budgets: dict[str, bb.Budget],
    mus: list[float] | None, seed: int,
) -> None:  # fmt: skip
    """The rows of post-training: one sweep, and the gates of each of its points projected onto each budget."""
    options = table.bench.options
    config = bb.PosttrainConfig(
        mus=mus, loss=options.loss, steps=options.steps, gate_lr=options.gate_lr, range_lr=options.range_lr, seed=seed
    )
    first, *others = budgets
    found = {name: BudgetPoints(compressor, budgets[name], loss, inputs) for name in others}

    def project(line: str) -> None:
        say(line)
        for points in found.values():
            points.add(float(line.split()[1].rstrip(":")))

    start = time.perf_counter()
    front = bb.posttrain(compressor, inputs, "gates+ranges", config, progress=project, budget=budgets[first])
    seconds = time.perf_counter() - start
    table.add("learned", first, budgets[first], front.points[-1], seconds)
    order = batch_order(len(inputs), config.steps, torch.Generator().manual_seed(seed))
    for name, points in found.items():
        start = time.perf_counter()
        point = points.settle(partial(learn_ranges, compressor, loss, config, order, lambda: None), None)
        table.add("learned", name, budgets[name], point, seconds + time.perf_counter() - start)


def measure(files: Path, path: Path, command: str) -> None:
    """Time the files of all rows and of the float network in turn, and add the fastest of many rounds to the result."""
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in result["rows"] if "file" in row]
    sessions = {name: Session(files / name, threads=1) for name in [FLOAT_FILE, *(row["file"] for row in rows)]}
    image = torch.randn(1, 3, 32, 32).numpy()
    fastest = dict.fromkeys(sessions, float("inf"))
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            fastest[name] = min(fastest[name], 1e3 * session.fastest({session.inputs[0]: image}, CALLS))
    for row in rows:
        row["measured_ms"] = fastest[row["file"]]
        predicted = row.get("latency_ms", float("nan"))
        say(f"{row['method']}, {row['budget']}: {row['measured_ms']:.4f} ms measured, {predicted:.4f} ms predicted")
    result |= {"timed_by": command, "machine": machine().cpu, "float_ms": fastest[FLOAT_FILE]}
    say(f"float: {result['float_ms']:.4f} ms")
    write(path, result)


def write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def own_parser() -> argparse.ArgumentParser:
    """The options that `experiments.posttrain` does not have."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--percents", nargs="+", type=float, default=RELATIVE_BOPS, help="budgets of bit operations")
    parser.add_argument("--planners", nargs="+", choices=PLANNERS, default=PLANNERS)
    return parser


def main(arguments: list[str]) -> None:
    parser = own_parser()
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="which costs are limited")
    parser.add_argument("--latency-table", type=Path, help="the table that bayesbits measure has written")
    parser.add_argument("--files", type=Path, help="where the ONNX file of every row is written")
    parser.add_argument("--time", type=Path, metavar="FILES", help="time the files of a result that is there")
    own, others = parser.parse_known_args(arguments)
    options = parse(others)
    only = f"-{own.kinds[0]}" if len(own.kinds) == 1 else ""
    path = options.out or Path(__file__).parent / "results" / f"budgets-{options.model}{only}.json"
    command = f"python -m experiments.budgets {as_typed(arguments)}"
    if own.time is not None:
        measure(own.time, path, command)
        return
    with implementation("eager") if options.device == "cpu" else nullcontext():
        run(Bench(options), own, path, command)


if __name__ == "__main__":
    main(sys.argv[1:])
