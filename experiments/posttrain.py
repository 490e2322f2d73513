"""Post-training of the pre-trained CIFAR-10 ResNets: fronts of every method, with the same training images for all.

    python -m experiments.posttrain --data FOLDER --model resnet20 --device cuda

FOLDER holds `cifar10` and `cifar10_resnets`. For every seed, 1,024 training images are drawn; each method sees only
these, and its decisions are tested on the test images. `--held-out` tests on 4,096 other training images instead:
defaults are chosen by these. The result is written after each part, and drawn at the end. With `--jobs` several parts
run in parallel on one device; then the seconds of a part are longer than those of one that runs alone.
"""

import argparse
import json
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cached_property
from math import log
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig, adaround, sensitivity, uniform
from bayesbits.posttraining.front_points import read_point
from bayesbits.posttraining.quantizer_state import quantizers_restored
from bayesbits.recipes.evaluation import full_float32
from bayesbits.records.front import Point
from bayesbits.utils.modes import evaluation_mode
from bayesbits.zoo import data, models
from experiments.fronts import ROUNDED, compare, draw

CHECKPOINTS = {
    "resnet20": "resnet20-12fca82f.th",
    "resnet32": "resnet32-d509ac18.th",
    "resnet44": "resnet44-014dd654.th",
    "resnet56": "resnet56-4bfd9763.th",
}
PLACES = {"--data": "FOLDER", "--files": "FILES", "--time": "FILES", "--latency-table": "table.json"}
"""What is written in the place of a path of this machine, by the option."""
OUTPUT = "--out"
"""The option that says where results are written, and nothing about them."""
METHODS = ("8/8 minmax", "8/8 mse", "gates", "gates+ranges", "sensitivity")


class ImageNetStatistics:
    """The statistics with which the pre-trained networks expect their images normalized."""

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)


class Bench:
    """The network, the images, and how a network is tested."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        images = data.load("cifar10", options.data)
        self.train = images.train.to(self.device)
        self.test = images.test.to(self.device)
        # The same for all seeds, and never among those that a method learns from.
        self.order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(2020))
        if options.held_out:
            chosen = self.order[:4096].to(self.device)
            self.test = data.Dataset(self.train.images[chosen], self.train.labels[chosen], self.train.classes)
        if options.test_images:
            count = options.test_images
            self.test = data.Dataset(self.test.images[:count], self.test.labels[:count], self.test.classes)

    def network(self) -> nn.Module:
        """The pre-trained network."""
        name = self.options.model
        model = models.create(name)
        models.load_checkpoint(model, Path(self.options.data) / "cifar10_resnets" / CHECKPOINTS[name])
        return model.eval().to(self.device)

    def examples(self, seed: int) -> tuple[Tensor, Tensor]:
        """The training images and labels of a seed."""
        order = self.order[4096:]
        chosen = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))]
        chosen = chosen[: self.options.examples].to(self.device)
        return data.normalize(self.train.images[chosen], ImageNetStatistics), self.train.labels[chosen]

    @cached_property
    def float_accuracy(self) -> float:
        """That of the pre-trained network."""
        return self.accuracy(self.network())

    def accuracy(self, model: nn.Module) -> float:
        """On the test images, in percent."""
        return 100 * self.correct(model).float().mean().item()

    @torch.no_grad()
    def correct(self, model: nn.Module) -> Tensor:
        """Of every test image whether it is classified correctly, in evaluation mode and full float32."""
        size = 64 if self.device.type == "cpu" else 1000  # what a core's cache holds, or a GPU is busy with
        batches = zip(self.test.images.split(size), self.test.labels.split(size), strict=True)
        with evaluation_mode(model), full_float32():
            found = [model(data.normalize(x, ImageNetStatistics)).argmax(1) == labels for x, labels in batches]
        return torch.cat(found).cpu()


def attached(bench: Bench, images: Tensor) -> bb.Compressor:
    """The pre-trained network with quantizers."""
    options = bench.options
    spec = bb.Spec(
        prune=False, residual_bits=options.residual_bits, gates=options.gates, bits=tuple(options.bits),
        per_channel_weights=not options.per_tensor,
    )  # fmt: skip
    return bb.attach(bench.network(), images[:1], spec)


def front(bench: Bench, method: str, seed: int) -> tuple[list[Point], list[dict[str, Any]], float]:
    """The points of a method, the same with their test accuracies, and how many seconds finding them took."""
    options = bench.options
    images, labels = bench.examples(seed)
    compressor = attached(bench, images)
    whole = list(images.split(512))
    start = time.perf_counter()
    if method.startswith("8/8"):
        points = [read_point(compressor, uniform(compressor, whole, method=method.split()[1]))]
    elif method == "sensitivity":
        compressor.calibrate(whole, "mse")
        batches = zip(whole, labels.split(512), strict=True)
        points = list(sensitivity(compressor, batches, score_fn=negative_loss, progress=say).front.points)
    else:
        compressor.calibrate(whole, "mse")
        config = bb.PosttrainConfig(
            mus=options.mus, loss=options.loss, steps=options.steps, gate_lr=options.gate_lr,
            range_lr=options.range_lr, seed=seed,
        )  # fmt: skip
        inputs = images.split(options.batch)
        batches = zip(inputs, labels.split(options.batch), strict=True) if options.loss == "labels" else inputs
        points = list(bb.posttrain(compressor, batches, method, config, progress=say).points)
    seconds = time.perf_counter() - start
    points = thinned(points, options.points) if options.points else points
    rows = []
    for point in points:
        with quantizers_restored(compressor.attachment):
            bb.restore(compressor, point)
            rows.append(row_of(point, bench.accuracy(compressor.model)))
    return points, rows, seconds


def rounded(bench: Bench, point: Point, seed: int) -> tuple[dict[str, Any], float]:
    """A point with its test accuracy after adaptive rounding, and the seconds that this took."""
    images, _ = bench.examples(seed)
    compressor = attached(bench, images)
    start = time.perf_counter()
    bb.restore(compressor, point)
    adaround(compressor, list(images.split(512)), AdaRoundConfig(steps=bench.options.adaround_steps))
    seconds = time.perf_counter() - start
    return row_of(point, bench.accuracy(compressor.model)), seconds


def row_of(point: Point, accuracy: float) -> dict[str, Any]:
    bits = point.plan.bits
    return {
        "mu": point.mu, "relative_bops": point.relative_bops, "accuracy": accuracy,
        "bits": {name: bits[name] for name in sorted(bits)},
    }  # fmt: skip


def thinned(points: list[Point], count: int) -> list[Point]:
    """At most so many points, evenly spaced in their order; the most expensive one is kept."""
    if len(points) <= count:
        return points
    if count == 1:
        return points[-1:]
    return [points[round(index * (len(points) - 1) / (count - 1))] for index in range(count)]


def to_round(points: list[Point], near: list[float] | None) -> list[Point]:
    """The points that get adaptive rounding: eight of a front, or the nearest to each of some costs."""
    if near is None:
        return thinned(points, 8)
    nearest = [min(points, key=lambda point: abs(log(point.relative_bops / cost))) for cost in near]
    return list({point.relative_bops: point for point in nearest}.values())


def negative_loss(output: Tensor, labels: Tensor) -> Tensor:
    """A score with finer steps than accuracy has on a thousand images."""
    return -F.cross_entropy(output, labels)


def as_typed(arguments: list[str]) -> str:
    """The arguments on a command line, without the paths of this machine."""
    words = [
        word for argument in arguments for word in (argument.split("=", 1) if argument.startswith("--") else [argument])
    ]
    shown: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if OUTPUT not in (before, word):
            shown.append(PLACES.get(before, word))
    return shlex.join(shown)


def entry_of(methods: dict[str, list[dict[str, Any]]], name: str, seed: int) -> dict[str, Any]:
    """The entry of a method and a seed; made where there is none yet."""
    entries = {entry["seed"]: entry for entry in methods.get(name, ())}
    entries.setdefault(seed, {"seed": seed, "seconds": 0.0, "points": []})
    methods[name] = [entries[number] for number in sorted(entries)]
    return entries[seed]


def say(line: str) -> None:
    print(line, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    defaults = bb.PosttrainConfig()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add: Callable[..., Any] = parser.add_argument
    add("--data", required=True, help="the folder with cifar10 and cifar10_resnets")
    add("--model", choices=CHECKPOINTS, default="resnet20")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seeds", type=int, default=3)
    add("--jobs", type=int, default=1, help="how many methods and seeds run beside each other")
    add("--methods", nargs="+", choices=METHODS, default=METHODS)
    add("--adaround", nargs="*", choices=METHODS, default=(), help="methods whose points get adaptive rounding too")
    add("--adaround-near", nargs="+", type=float, metavar="PERCENT", help="only their points nearest to these costs")
    add("--adaround-steps", type=int, default=1000)
    add("--examples", type=int, default=1024)
    add("--batch", type=int, default=64)
    add("--bits", nargs="+", type=int, default=bb.Spec().bits, help="the widths to choose from, beside none")
    add("--gates", default="hard_sigmoid", help="the kind of gates; see bayesbits.Spec")
    add("--residual-bits", type=int, help="the fixed width of operands of residual additions; by default float")
    add("--per-tensor", action="store_true", help="one range for each weight tensor, not for each output channel")
    add("--loss", choices=("labels", "output", "layers"), default="output")
    add("--mus", nargs="+", type=float, help="by default eight that suit the kind of gates")
    add("--steps", type=int, default=defaults.steps)
    add("--gate-lr", type=float, default=defaults.gate_lr)
    add("--range-lr", type=float, default=defaults.range_lr)
    add("--held-out", action="store_true", help="test on training images that no method sees")
    add("--test-images", type=int, help="test on the first so many only")
    add("--points", type=int, help="test at most so many points of a front, evenly chosen")
    add("--out", type=Path, help="the JSON file; results/posttrain-MODEL.json by default")
    return parser.parse_args(arguments)


def outcomes(options: argparse.Namespace) -> Iterator[tuple[str, int, list[dict[str, Any]], float]]:
    """Method, seed, tested points and seconds as they finish: fronts first, then rounded points one by one."""
    # The slowest methods are last in METHODS, and start first.
    tasks = [(method, seed) for method in reversed(options.methods) for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), initializer=_set_up, initargs=(options,)) as pool:
        waiting: dict[Future[Any], tuple[str, int]] = {pool.submit(_front, *task): task for task in tasks}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                method, seed = waiting.pop(future)
                if future.exception() is not None:
                    pool.shutdown(cancel_futures=True)
                if method.endswith(ROUNDED):
                    row, seconds = future.result()
                    yield method, seed, [row], seconds
                    continue
                points, rows, seconds = future.result()
                yield method, seed, rows, seconds
                for point in to_round(points, options.adaround_near) if method in options.adaround else ():
                    waiting[pool.submit(_rounded, point, seed)] = (method + ROUNDED, seed)


_bench: Bench


def _set_up(options: argparse.Namespace) -> None:
    global _bench
    if options.jobs > 1:
        torch.set_num_threads(1)
    _bench = Bench(options)


def _front(method: str, seed: int) -> tuple[list[Point], list[dict[str, Any]], float]:
    return front(_bench, method, seed)


def _rounded(point: Point, seed: int) -> tuple[dict[str, Any], float]:
    return rounded(_bench, point, seed)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    out = options.out or Path(__file__).parent / "results" / f"posttrain-{options.model}.json"
    bench = Bench(options)
    device = torch.cuda.get_device_name() if bench.device.type == "cuda" else platform.machine()
    methods: dict[str, list[dict[str, Any]]] = {}
    result: dict[str, Any] = {
        "command": f"python -m experiments.posttrain {as_typed(arguments or sys.argv[1:])}",
        "torch": torch.__version__,
        "device": device,
        "model": options.model,
        "tested_on": "held-out training images" if options.held_out else "test images",
        "images": len(bench.test),
        "settings": {key: value for key, value in vars(options).items() if key not in ("data", "out", "device")},
        "float_accuracy": bench.float_accuracy,
        "methods": methods,
    }
    say(f"float: {result['float_accuracy']:.2f}%")
    del bench
    for name, seed, rows, seconds in outcomes(options):
        entry = entry_of(methods, name, seed)
        entry["seconds"] += seconds
        entry["points"] = sorted([*entry["points"], *rows], key=lambda row: row["relative_bops"], reverse=True)
        figures = ", ".join(f"{row['accuracy']:.2f} at {row['relative_bops']:.2f}" for row in rows[-8:])
        say(f"{name}, seed {seed}, {seconds:.0f} s: {figures}")
        result["comparison"] = compare(result)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    drawn = draw(result, out.with_suffix(".svg"))
    say(f"{out}{f' and {drawn}' if drawn else ', not drawn: matplotlib is not installed'}")
    return result


if __name__ == "__main__":
    main()
