"""Post-training of the pre-trained CIFAR-10 ResNets: fronts of every method, with the same training images for all.

    python -m experiments.posttrain --data FOLDER --model resnet20 --device cuda

FOLDER holds `cifar10` and `cifar10_resnets`. For every seed, 1,024 training images are drawn; each method sees these
and nothing else, and what it decides is tested on the test images. `--held-out` tests on 4,096 other training images
instead, which is what defaults are chosen by. The result is written after every method, and drawn at the end. With
`--jobs` several methods and seeds run beside each other, on one device; then the seconds are not those of one alone.
"""

import argparse
import json
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig, adaround, sensitivity, uniform
from bayesbits.front import Point
from bayesbits.posttraining.modes import kept
from bayesbits.posttraining.points import read_point
from bayesbits.zoo import data, models
from experiments.drawing import draw

CHECKPOINTS = {
    "resnet20": "resnet20-12fca82f.th",
    "resnet32": "resnet32-d509ac18.th",
    "resnet44": "resnet44-014dd654.th",
    "resnet56": "resnet56-4bfd9763.th",
}
METHODS = ("8/8 minmax", "8/8 mse", "gates", "gates+ranges", "sensitivity")
COST_OF_8_8 = 6.25


class ImageNetStatistics:
    """What the pre-trained networks expect of their images."""

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
        return data.normalise(self.train.images[chosen], ImageNetStatistics), self.train.labels[chosen]

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """On the test images, in percent."""
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        for images, labels in zip(self.test.images.split(1000), self.test.labels.split(1000), strict=True):
            right += (model(data.normalise(images, ImageNetStatistics)).argmax(1) == labels).sum()
        return 100 * right.item() / len(self.test)


def run(bench: Bench, method: str, seed: int) -> Iterator[tuple[str, list[dict[str, Any]], float]]:
    """The points of a method with their test accuracies, and its seconds; and the same behind adaptive rounding."""
    options = bench.options
    images, labels = bench.examples(seed)
    spec = bb.Spec(prune=False, residual_bits=None, gates=options.gates)
    model = bench.network()
    compressor = bb.attach(model, images[:1], spec)
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
            mus=options.mus, loss=options.loss, steps=options.steps, gate_rate=options.gate_rate,
            range_rate=options.range_rate, seed=seed,
        )  # fmt: skip
        inputs = images.split(options.batch)
        batches = zip(inputs, labels.split(options.batch), strict=True) if options.loss == "labels" else inputs
        points = list(bb.posttrain(compressor, batches, method, config, progress=say).points)
    seconds = time.perf_counter() - start
    points = thinned(points, options.points) if options.points else points
    yield method, [on_test_images(bench, compressor, point) for point in points], seconds
    if method in options.adaround:
        start = time.perf_counter()
        rounded = [on_test_images(bench, compressor, point, rounding=whole) for point in thinned(points, 8)]
        yield f"{method} adaround", rounded, time.perf_counter() - start


def on_test_images(
    bench: Bench, compressor: bb.Compressor, point: Point, rounding: list[Tensor] | None = None
) -> dict[str, Any]:
    """A point with its accuracy on the test images; gates, ranges and weights are left as they were."""
    model = compressor.model
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with kept(compressor.attachment):
        bb.restore(compressor, point)
        if rounding is not None:
            adaround(compressor, rounding, AdaRoundConfig(steps=bench.options.adaround_steps))
        accuracy = bench.accuracy(model)
    with torch.no_grad():
        for parameter, before in zip(model.parameters(), weights, strict=True):
            parameter.copy_(before)
    bits = point.plan.bits
    return {
        "mu": point.mu, "relative_bops": point.relative_bops, "accuracy": accuracy,
        "bits": {name: bits[name] for name in sorted(bits)},
    }  # fmt: skip


def thinned(points: list[Point], count: int) -> list[Point]:
    """At most so many points, evenly spaced in their order; the dearest is kept."""
    if len(points) <= count:
        return points
    if count == 1:
        return points[-1:]
    return [points[round(index * (len(points) - 1) / (count - 1))] for index in range(count)]


def negative_loss(output: Tensor, labels: Tensor) -> Tensor:
    """A score with finer steps than accuracy has on a thousand images."""
    return -F.cross_entropy(output, labels)


def compare(result: dict[str, Any]) -> dict[str, Any]:
    """By how many points learned fronts lie above the sensitivity front, above each other, and above 8/8.

    A point is held against the best that the other front of the same seed has on the test images at the same cost or
    below: among many points that is a little too good, by luck, and the comparison is the harder for it. Points cheaper
    than all of the other front are left out.
    """
    found: dict[str, Any] = {}
    for better, worse in (("gates", "sensitivity"), ("gates+ranges", "sensitivity"), ("gates+ranges", "gates")):
        for rounding in ("", " adaround"):
            rows = _over(result["methods"], better + rounding, worse + rounding)
            if rows:
                found[f"{better}{rounding} over {worse}{rounding}"] = {
                    "points_better_by_on_average": mean(row["points_better_by"] for row in rows),
                    "points_of_the_front_above": sum(row["points_better_by"] > 0 for row in rows),
                    "points_of_the_front": len(rows),
                    "points": rows,
                }
    for name in ("gates", "gates+ranges"):
        rows = _over(result["methods"], "8/8 minmax", name) + _over(result["methods"], "8/8 mse", name)
        if rows:
            found[f"{name} over 8/8 within {COST_OF_8_8}%"] = [-row["points_better_by"] for row in rows]
    return found


def _over(methods: dict[str, Any], better: str, worse: str) -> list[dict[str, Any]]:
    """Every point of one method, and by how much it is better than the other method's front of the same seed."""
    fronts = {run["seed"]: run["points"] for run in methods.get(worse, ())}
    return [
        {
            "seed": run["seed"],
            "relative_bops": point["relative_bops"],
            "points_better_by": point["accuracy"] - max(_up_to(fronts[run["seed"]], point["relative_bops"])),
        }
        for run in methods.get(better, ())
        if run["seed"] in fronts
        for point in run["points"]
        if _up_to(fronts[run["seed"]], point["relative_bops"])
    ]


def _up_to(points: list[dict[str, Any]], cost: float) -> list[float]:
    """The accuracies at this cost or below."""
    return [point["accuracy"] for point in points if point["relative_bops"] <= cost + 1e-9]


def as_typed(arguments: list[str]) -> str:
    """The arguments on a command line, without the places of this machine."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    shown: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if "--out" not in (before, word):
            shown.append("FOLDER" if before == "--data" else word)
    return shlex.join(shown)


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
    add("--adaround-steps", type=int, default=1000)
    add("--examples", type=int, default=1024)
    add("--batch", type=int, default=64)
    add("--gates", default="hard_sigmoid", help="the kind of gates; see bayesbits.Spec")
    add("--loss", choices=("labels", "output", "layers"), default="output")
    add("--mus", nargs="+", type=float, help="by default eight that suit the kind of gates")
    add("--steps", type=int, default=defaults.steps)
    add("--gate-rate", type=float, default=defaults.gate_rate)
    add("--range-rate", type=float, default=defaults.range_rate)
    add("--held-out", action="store_true", help="test on training images that no method sees")
    add("--test-images", type=int, help="test on the first so many only")
    add("--points", type=int, help="test at most so many points of a front, evenly chosen")
    add("--out", type=Path, help="the JSON file; results/posttrain-MODEL.json by default")
    return parser.parse_args(arguments)


def outcomes(options: argparse.Namespace) -> Iterator[tuple[int, list[Any]]]:
    """What `run` gives for every method and seed, as they come."""
    tasks = [(method, seed) for method in options.methods for seed in range(options.seeds)]
    if options.jobs == 1:
        bench = Bench(options)
        for method, seed in tasks:
            yield seed, list(run(bench, method, seed))
        return
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), initializer=_set_up, initargs=(options,)) as pool:
        # Those that take longest come last in METHODS, and start first.
        waiting = {pool.submit(_work, *task): task[1] for task in reversed(tasks)}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


_bench: Bench


def _set_up(options: argparse.Namespace) -> None:
    global _bench
    torch.set_num_threads(1)
    _bench = Bench(options)


def _work(method: str, seed: int) -> list[Any]:
    return list(run(_bench, method, seed))


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
        "float_accuracy": bench.accuracy(bench.network()),
        "methods": methods,
    }
    say(f"float: {result['float_accuracy']:.2f}%")
    del bench
    for seed, outcome in outcomes(options):
        for name, points, seconds in outcome:
            methods.setdefault(name, []).append({"seed": seed, "seconds": seconds, "points": points})
            methods[name].sort(key=lambda one: one["seed"])
            figures = ", ".join(f"{point['accuracy']:.2f} at {point['relative_bops']:.2f}" for point in points[-8:])
            say(f"{name}, seed {seed}, {seconds:.0f} s: {figures}")
        result["comparison"] = compare(result)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    drawn = draw(result, out.with_suffix(".svg"))
    say(f"{out}{f' and {drawn}' if drawn else ', not drawn: matplotlib is not installed'}")
    return result


if __name__ == "__main__":
    main()
