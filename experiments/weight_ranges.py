"""A range for each output channel of a weight beside one for the whole tensor, after training: accuracy and speed.

    python -m experiments.weight_ranges --data FOLDER --model resnet20 --seeds 1
    python -m experiments.weight_ranges --data FOLDER --model resnet20 --speed

The first command is `experiments.budgets` with its budgets of bit operations, twice for each seed and with the same
images: per channel, and per tensor. Of every row it tells the difference in accuracy, and the standard error of that
difference over the test images, most of which both networks classify alike. The second one times the float file and the
two files at 8/8 in turn, with one thread; the machine has to be idle. Options are those of `experiments.posttrain`.
Both write to `results/weight-ranges-MODEL.json`.
"""

import argparse
import json
import platform
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesbits as bb
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.latency import measure_latencies
from bayesbits.deploy.onnx.runtime import machine
from bayesbits.functional import implementation
from experiments.budgets import own_parser, run, write
from experiments.posttrain import Bench, as_typed, parse, say

WAYS = {"per channel": False, "per tensor": True}
ROUNDS = 300
KEPT = ("accuracy", "loss", "relative_bops")


def paired_difference(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """By how many points `ours` is better, of booleans for each test image, and the standard error of that."""
    difference = 100 * (ours.double() - theirs.double())
    return difference.mean().item(), (difference.std() / len(difference) ** 0.5).item()


def compare(bench: Bench, asked: argparse.Namespace, seed: int, command: str) -> list[dict[str, Any]]:
    """The rows of one seed, each with both ways."""
    own = argparse.Namespace(**{**vars(asked), "kinds": ("bops",), "latency_table": None, "files": None})
    tables = {}
    for way, per_tensor in WAYS.items():
        say(f"seed {seed}, {way}")
        bench.options.per_tensor = per_tensor
        with tempfile.TemporaryDirectory() as folder:
            tables[way] = run(bench, own, Path(folder) / "rows.json", command, seed)
    channel, tensor = tables.values()
    rows = []
    for number, (ours, theirs) in enumerate(zip(channel.rows, tensor.rows, strict=True)):
        assert (ours["method"], ours["budget"]) == (theirs["method"], theirs["budget"])
        difference, error = paired_difference(channel.correct[number], tensor.correct[number])
        row = {"seed": seed, "method": ours["method"], "budget": ours["budget"]}
        row |= {way: {key: table.rows[number][key] for key in KEPT} for way, table in tables.items()}
        rows.append({**row, "difference": difference, "standard_error": error})
        say(f"{row['method']}, {row['budget']}: {difference:+.2f} +- {error:.2f} points per channel")
    return rows


def speed(bench: Bench) -> dict[str, Any]:
    """Milliseconds of one image, of the fastest of many rounds in which every file runs once."""
    images, _ = bench.examples(0)
    with tempfile.TemporaryDirectory() as folder:
        files = {"float": Path(folder) / "float.onnx"}
        export_float_onnx(bench.network(), images[:1], files["float"])
        for way, per_tensor in WAYS.items():
            spec = replace(bb.Spec.for_backend("onnxruntime"), per_channel_weights=not per_tensor)
            compressor = bb.attach(bench.network(), images[:1], spec)
            compressor.fix(bb.baselines.uniform(compressor, [images]))
            small = bb.deploy(compressor)
            files[way] = Path(folder) / f"{per_tensor}.onnx"
            bb.export_onnx(small, images[:1], files[way])
        times = measure_latencies(files, small, images[:1], threads=(1,), batches=(1,), rounds=ROUNDS)
    here = machine()
    found = {time.name: 1e3 * time.seconds for time in times}
    say(f"{here.cpu}, {here.runtime}: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in found.items()))
    return {"machine": f"{here.cpu}, {here.runtime}, 1 thread", "rounds": ROUNDS, "milliseconds": found}


def main(arguments: list[str]) -> None:
    parser = own_parser()
    parser.add_argument("--speed", action="store_true", help="time the files at 8/8 instead")
    own, others = parser.parse_known_args(arguments)
    options = parse(others)
    path = options.out or Path(__file__).parent / "results" / f"weight-ranges-{options.model}.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    command = f"python -m experiments.weight_ranges {as_typed(arguments)}"
    bench = Bench(options)
    if own.speed:
        result["speed"] = {"command": command, **speed(bench)}
        write(path, result)
        return
    with implementation("eager") if options.device == "cpu" else nullcontext():
        result["accuracy"] = {
            "command": command, "torch": torch.__version__, "device": platform.machine(), "model": options.model,
            "images": len(bench.test), "float_accuracy": bench.float_accuracy, "rows": [],
        }  # fmt: skip
        for seed in range(options.seeds):
            result["accuracy"]["rows"] += compare(bench, own, seed, command)
            write(path, result)


if __name__ == "__main__":
    main(sys.argv[1:])
