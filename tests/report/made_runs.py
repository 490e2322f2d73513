"""Folders of runs of real and of large networks, with every file that a page shows; nothing is trained."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import torch

import bayesbits as bb
from bayesbits.cost import CostModel
from bayesbits.recipes import load, to_toml
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.result import make_result
from bayesbits.records.plan import Plan
from bayesbits.records.tensor_statistics import Histogram, LayerError, TensorStatistics
from bayesbits.records.topology import Activation, ChannelGroup, Layer, Topology
from tests.deploy.tables import Encoder, tokens
from tests.report.runs import write_bench

_SHAPES = {"lenet5": (1, 1, 28, 28), "resnet50": (1, 3, 64, 64)}
LONG = "150 layers"
ENCODER = "encoder"
_POINTS = 40


def network(name: str) -> Topology:
    """The topology of LeNet-5, of ResNet-50, of a chain of 150 layers with long names, or of a transformer with tables
    and products of two activations."""
    if name == LONG:
        return _chain(150)
    if name == ENCODER:
        return bb.trace(Encoder().eval(), tokens(1, 6), activation_products=True)
    return bb.trace(build_model(name, {})[0].eval(), torch.zeros(_SHAPES[name]))


def _chain(number: int) -> Topology:
    names = [
        f"encoder.stages_of_the_network.{place // 10}.residual_block_with_a_long_name.{place % 10}.projection_layer"
        for place in range(number)
    ]
    layers = tuple(
        Layer(
            name=name, kind="linear", parameter=f"{name}.weight", weight_shape=(8, 8), groups=1, bias=True, calls=1,
            macs=64, norm=None, activation=f"{name}.input", in_channels=tuple(range(8 * place, 8 * place + 8)),
            out_channels=tuple(range(8 * place + 8, 8 * place + 16)), depthwise=False,
        )
        for place, name in enumerate(names)
    )  # fmt: skip
    activations = tuple(Activation(f"{name}.input", (name,), place == 0) for place, name in enumerate(names))
    groups = [ChannelGroup("input", 0, 8, (), (names[0],), "is a network input")]
    for place, name in enumerate(names):
        readers = (names[place + 1],) if place + 1 < number else ()
        reason = None if readers else "reaches the network's output"
        groups.append(ChannelGroup(name, 8 * place + 8, 8, (name,), readers, reason))
    return Topology(layers, activations, (), (), (), tuple(groups), (), (names[-1],), other_parameters=0, traced=True)


def write_made_run(folder: Path, topology: Topology, seed: int = 0) -> Plan:
    """A run with a random plan, curves, gates, statistics and times; returns the plan."""
    random_ = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan({
        name: 8 if name.endswith(".output") else random_.choice((2, 4, 4, 8))
        for name in Plan.uniform(topology, 8, 8).bits
    })  # fmt: skip
    gone = [
        channel
        for group in topology.removable_groups
        for channel in group.channels
        if channel != group.first and random_.random() < 0.3
    ]
    plan = plan.without(topology, gone)
    recipe, model = load("digits-lenet5", [f"seed={seed}"]), CostModel(topology)
    result = make_result(
        recipe, model.count(plan), model.dense(), topology,
        scores=(Score("accuracy", 75.1 + random_.random(), 76.2, "%", higher_is_better=True),), seconds=4000.0,
        device="abacus (cpu)", versions={"bayesbits": "0.1.0", "torch": "2.11.0"},
    )  # fmt: skip
    topology.save(folder / "topology.json")
    plan.save(folder / "plan.json")
    result.save(folder / "result.json")
    (folder / "recipe.toml").write_text(to_toml(recipe))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _metrics(plan, random_)))
    _statistics(topology, plan, random_).save(folder / "statistics.json")
    write_bench(folder)
    return plan


def _metrics(plan: Plan, random_: random.Random) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    for step in range(1, _POINTS + 1):
        where = {"phase": "search", "epoch": step // 2, "step": 10 * step}
        cost = 100 * 0.9**step
        values = {"task_loss": 2 / math.sqrt(step), "expected_relative_bops": cost, "mu_relative_bops": 0.1 * step}
        lines.append({**where, "event": "train", **values})
        lines.append({**where, "event": "evaluate", "validation_accuracy": 80 - 30 / step})
        wide = {name: bits if random_.random() > 0.9**step else 8 for name, bits in plan.bits.items()}
        closed = {"4": round(1 / (1 + math.exp(step / 4 - 6)), 3), "8": round(1 / (1 + math.exp(step / 3 - 5)), 3)}
        gates = {"bits": wide, "probabilities": dict.fromkeys(plan.bits, closed), "kept": {}}
        lines.append({**where, "event": "gates", "relative_bops": 1.1 * cost, **gates})
    return lines


def _statistics(topology: Topology, plan: Plan, random_: random.Random) -> TensorStatistics:
    bell = tuple(int(1000 * math.exp(-(((place - 32) / 10) ** 2))) for place in range(64))
    noise = {"2": 6.0, "4": 20.0, "8": 44.0}
    tensors = tuple(
        Histogram(name, bits, -1.0 if name.endswith(".weight") else 0.0, 1.0, 1, -1.1, 1.1, bell, 0.5, noise)
        for name, bits in plan.bits.items()
    )
    errors = (LayerError(name, 15 + 20 * random_.random(), 12 + 5 * random_.random()) for name in topology.macs_of)
    return TensorStatistics(16, tensors, tuple(errors), 14.0)
