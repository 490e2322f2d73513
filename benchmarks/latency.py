"""Predicted latencies beside measured ones: the sum over layers plus the overhead, for whole networks and plans."""

import copy
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import to_onnx
from bayesbits.deploy.onnx.measured_network import network_ms
from bayesbits.zoo import models
from benchmarks.networks import pytorchcv
from benchmarks.quantizer import Row

BYTES, ALL = bb.Spec.for_backend("onnxruntime"), bb.Spec(channel_multiple=8)


@dataclass(frozen=True)
class Network:
    """A network to predict."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    spec: bb.Spec


@dataclass(frozen=True)
class Variant:
    """Widths at random, and a part of the channels gone, evenly or by group at random."""

    widths: tuple[int, ...]
    gone: float = 0.0
    uneven: bool = False


NETWORKS = {
    "LeNet-5": Network(lambda: models.create("lenet5"), (1, 1, 28, 28), ALL),
    "VGG-7": Network(lambda: models.create("vgg7"), (1, 3, 32, 32), ALL),
    "ResNet-18": Network(lambda: models.create("resnet18"), (1, 3, 224, 224), BYTES),
    "MobileNetV2": Network(lambda: models.create("mobilenetv2"), (1, 3, 224, 224), BYTES),
    "MobileNetV3-small (pytorchcv)": Network(
        lambda: pytorchcv("mobilenetv3", "mobilenetv3_small_w1"), (1, 3, 224, 224), BYTES
    ),
}
SMALL = {"LeNet-5": Network(lambda: models.create("lenet5"), (1, 1, 28, 28), BYTES)}
VARIANTS = {
    "8/8": Variant((8,)),
    "2, 4, 8 mixed": Variant((2, 4, 8)),
    "8/8, 30% of channels gone": Variant((8,), 0.3),
    "2, 4, 8 mixed, 0 to 80% gone by group": Variant((2, 4, 8), 0.8, uneven=True),
    "4, 8, 16, 32 mixed": Variant((4, 8, 16, 32)),
    "8, 32 mixed, 0 to 60% gone by group": Variant((8, 32), 0.6, uneven=True),
}


def latency(smoke: bool) -> list[Row]:
    """Milliseconds of one call, one thread, predicted by a latency table of single layers and measured as a whole.

    Weights are random, which the time does not depend on. A network is left out where its library cannot be imported.
    The last row has the median and the largest of all errors.
    """
    rows: list[Row] = []
    for name, network in (SMALL if smoke else NETWORKS).items():
        try:
            network.make()
        except ImportError as error:
            rows.append({"network": name, "left out": str(error)})
            continue
        rows += _network(name, network, rounds=1 if smoke else 20)
    errors = [abs(float(row["error %"])) for row in rows if "error %" in row]
    if not errors:
        return rows
    rows.append({"network": "median error %", "error %": round(median(errors), 1)})
    rows.append({"network": "largest error %", "error %": round(max(errors), 1)})
    return rows


def _network(name: str, network: Network, rounds: int) -> list[Row]:
    model, example = network.make().eval(), torch.randn(network.shape)
    with tempfile.TemporaryDirectory() as folder:
        table = bb.measure(model, example, network.spec, path=Path(folder) / "table.json", rounds=rounds)
    rows: list[Row] = []
    attached = bb.attach(model, example, network.spec)
    attached.calibrate([example])
    for title, variant in VARIANTS.items():
        if max(variant.widths) > max(network.spec.bits):
            continue
        compressor = bb.Compressor(copy.deepcopy(attached.model))
        plan = random_plan(compressor.topology, variant)
        predicted = compressor.cost(plan, table).latency_ms
        compressor.fix(plan)
        small = bb.deploy(compressor)
        measured = network_ms(to_onnx(small, example, "fast"), small, example, threads=1, rounds=3 * rounds)
        assert predicted is not None
        rows.append(
            {
                "network": name,
                "plan": title,
                "predicted ms": round(predicted, 4),
                "measured ms": round(measured, 4),
                "error %": round(100 * (predicted / measured - 1), 1),
            }
        )
    return rows


def random_plan(topology: bb.Topology, variant: Variant) -> bb.Plan:
    """A plan of a variant; inputs of the network and operands of additions have 8 bits."""
    choose = random.Random(0)
    plan = bb.Plan.uniform(topology, residual_bits=8)
    fixed = {activation.name for activation in topology.activations if activation.network_input}
    fixed |= set(topology.operand_tensors)
    bits = {name: width if name in fixed else choose.choice(variant.widths) for name, width in plan.bits.items()}
    gone: set[int] = set()
    for group in topology.removable_groups:
        part = choose.uniform(0.0, variant.gone) if variant.uneven else variant.gone
        keep = min(group.size, max(8, round(group.size * (1 - part) / 8) * 8))
        gone.update(group.channels[keep:])
    return bb.Plan(bits).without(topology, gone)
