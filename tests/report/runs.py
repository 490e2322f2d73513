"""The folder of a finished run, written by hand: nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path

from bayesbits.cost import CostModel
from bayesbits.deploy.onnx.runtime import Kernel, Machine
from bayesbits.deploy.verification.result import (
    ConstantCounts,
    Predictions,
    QuantizedTensor,
    RuntimeTensor,
    SimulatedOutput,
    SimulationCounts,
    Verification,
)
from bayesbits.recipes import Result, load, to_toml
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.result import make_result
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Activation, ChannelGroup, Layer, Topology, Unsupported
from bayesbits.training.execution import Execution

HOSTILE = "<script>alert('x')</script>&\"\u202e"


def topology(first: str = "stem", reason: str = "reaches the network's output") -> Topology:
    """Two linear layers, 4 -> 8 -> 3, and an attention product."""
    layers = (
        _linear(first, range(4), range(4, 12)),
        _linear("head", range(4, 12), range(12, 15)),
    )
    groups = (
        ChannelGroup("input", 0, 4, (), (first,), "is a network input"),
        ChannelGroup(first, 4, 8, (first,), ("head",), None),
        ChannelGroup("head", 12, 3, ("head",), (), reason),
    )
    inputs = tuple(Activation(f"{layer.name}.input", (layer.name,), layer.name == first) for layer in layers)
    rest = (Unsupported("mix", "attention product", 10, reason),)
    return Topology(layers, inputs, (), (), (), groups, rest, ("head",), other_parameters=5, traced=True)


def _linear(name: str, inputs: range, outputs: range) -> Layer:
    return Layer(
        name=name, kind="linear", parameter=f"{name}.weight", weight_shape=(len(outputs), len(inputs)), groups=1,
        bias=True, calls=1, macs=len(outputs) * len(inputs), norm=None, activation=f"{name}.input",
        in_channels=tuple(inputs), out_channels=tuple(outputs), depthwise=False,
    )  # fmt: skip


def write_run(folder: Path, first: str = "stem", reason: str = "reaches the network's output") -> Result:
    """A run in which `first` keeps 6 of its 8 channels at 2 x 8 bits, and the head has 4 x 16 bits."""
    network = topology(first, reason)
    bits = {f"{first}.weight": 2, f"{first}.input": 8, "head.weight": 4, "head.input": 16}
    plan = Plan(bits, {first: (0, 1, 2, 3, 4, 5)})
    recipe, model = load("digits-lenet5"), CostModel(network)
    result = make_result(
        recipe, model.count(plan), model.dense(), network,
        scores=(Score("accuracy", 97.5, 98.25, "%", higher_is_better=True),), seconds=61.0, device="abacus (cpu)",
        versions={"bayesbits": "0.1.0", "torch": "2.11.0"},
        executions={"search": Execution("beads", False, "it failed: no beads", True, "")},
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    network.save(folder / "topology.json")
    plan.save(folder / "plan.json")
    result.save(folder / "result.json")
    (folder / "recipe.toml").write_text(to_toml(recipe))
    lines = [_line("float", 20, 2.0), _line("search", 10, 1.0, 80.0), _line("search", 20, 0.5, 8.0)]
    (folder / "metrics.jsonl").write_text("".join([*lines, _line("finetune", 5, 0.25)]))
    return result


def _line(phase: str, step: int, loss: float, bops: float | None = None) -> str:
    cost = {} if bops is None else {"expected_relative_bops": bops}
    return json.dumps({"phase": phase, "event": "train", "epoch": 0, "step": step, "task_loss": loss, **cost}) + "\n"


def write_verification(
    folder: Path, layers: tuple[str, ...] = ("stem", "head"), *, failure: str | None = None, wrong: int = 0
) -> None:
    """A verification in which the last layer does not run in integers."""
    place = RuntimeTensor("stem", "layer", True, 4321, 0, 0.0, 0, 0.0, Predictions())
    output = RuntimeTensor("output", "output", False, 10, 5, 2e-7, 7, 3e-2, Predictions(10, 360, 2), "output")
    integer = [Kernel(name, "QGemm", True, None) for name in layers[:-1]]
    tensors = (QuantizedTensor("stem.input", 7000, 3, 0, 5), QuantizedTensor("head.input", 654, 0, wrong, 6))
    outputs = (SimulatedOutput("output", 3600, 1e-7, 1e-6, 4e-2, Predictions(10, 360, 1)),)
    Verification(
        machine=Machine("Counting Frame 9000", ("avx_vnni",), "onnxruntime 1.31"),
        derived=ConstantCounts(48, 9, 2),
        stored=ConstantCounts(48, 9, 2),
        simulated=SimulationCounts(360, tensors, outputs),
        runtime_tensors=(place, output),
        kernels=(*integer, Kernel(layers[-1], "Gemm", False, "it is wide")),
        failure=failure,
    ).save(folder / "verification.json")
