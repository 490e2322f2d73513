"""Deployed networks in onnxruntime: milliseconds and megabytes, with the bit operations beside them."""

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.latency import Latency, measure_latencies
from bayesbits.zoo.models import VGG7, LeNet5, resnet18
from benchmarks.quantizer import Row

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vgg7": (VGG7, (1, 3, 32, 32)),
    "resnet18": (resnet18, (1, 3, 224, 224)),
}
Variant = tuple[str, tuple[int, ...], float, str]
VARIANTS: list[Variant] = [
    ("8/8, fast", (8,), 0.0, "fast"),
    ("2, 4, 8 mixed, fast", (2, 4, 8), 0.0, "fast"),
    ("2, 4, 8 mixed, compact", (2, 4, 8), 0.0, "compact"),
    ("4/4, compact", (4,), 0.0, "compact"),
    ("8/8, 30% of channels gone, fast", (8,), 0.3, "fast"),
]
SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"lenet5": (LeNet5, (1, 1, 28, 28))}


def deployed(smoke: bool) -> list[Row]:
    """Float, 8 bits, and 2, 4 or 8 bits at random, in both forms of file, with all channels and with 30% of them gone.

    Weights are random, which the time does not depend on. "speed" is the time of float over that of the row, in the
    same run.
    """
    rows = []
    for name, (make, shape) in (SMALL if smoke else NETWORKS).items():
        rows += _network(
            name, make, torch.randn(shape), VARIANTS[-2:] if smoke else VARIANTS, rounds=1 if smoke else 15
        )
    return rows


def _network(
    name: str, make: Callable[[], nn.Module], example: Tensor, variants: Sequence[Variant], rounds: int
) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        files, relative = {"float": Path(folder) / "float.onnx"}, {"float": (100.0, 1.0)}
        export_float_onnx(make().eval(), example, files["float"])
        for title, widths, drop, form in variants:
            compressor = bb.attach(make().eval(), example, bb.Spec.for_backend("onnxruntime"))
            compressor.calibrate([example])
            whole = compressor.cost().macs
            compressor.fix(random_plan(compressor.topology, widths, drop))
            small = bb.deploy(compressor)
            relative[title] = (compressor.cost().relative_bops, small.macs / whole)
            files[title] = Path(folder) / f"{len(files)}.onnx"
            bb.export_onnx(small, example, files[title], form)
        return _rows(name, measure_latencies(files, small, example, rounds=rounds), relative)


def _rows(network: str, latencies: list[Latency], relative: dict[str, tuple[float, float]]) -> list[Row]:
    float_seconds = {(one.threads, one.batch): one.seconds for one in latencies if one.name == "float"}
    return [
        {
            "network": network,
            "file": one.name,
            "threads": one.threads or "all",
            "batch": one.batch,
            "ms": round(one.seconds * 1e3, 2),
            "speed": round(float_seconds[one.threads, one.batch] / one.seconds, 2),
            "MB": round(one.bytes / 1e6, 2),
            "% BOPs": round(relative[one.name][0], 2),
            "% MACs": round(relative[one.name][1] * 100, 1),
        }
        for one in latencies
    ]


def random_plan(topology: bb.Topology, widths: tuple[int, ...], drop: float) -> bb.Plan:
    """Widths at random, 8 bits for inputs and operands of additions, and the last part of every group gone."""
    choose = random.Random(0)
    plan = bb.Plan.uniform(topology, residual_bits=8)
    fixed = {activation.name for activation in topology.activations if activation.network_input}
    fixed |= set(topology.operand_tensors)
    bits = {name: width if name in fixed else choose.choice(widths) for name, width in plan.bits.items()}
    gone = {
        channel
        for group in topology.removable_groups
        for channel in group.channels[group.size - int(group.size * drop) :]
    }
    return bb.Plan(bits).without(topology, gone)
