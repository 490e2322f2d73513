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
from bayesbits.records.bench import Bench, FileTime, KernelTime
from bayesbits.records.plan import Plan
from bayesbits.records.tensor_statistics import Histogram, LayerError, TensorStatistics
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
    lines = [_line("float", 20, 2.0), _line("search", 10, 1.0, 80.0), gates_line(first, 10, 4, 16)]
    lines += [_line("search", 20, 0.5, 8.0), gates_line(first, 20, 2, 16)]
    (folder / "metrics.jsonl").write_text("".join([*lines, _line("finetune", 5, 0.25)]))
    return result


def _line(phase: str, step: int, loss: float, bops: float | None = None) -> str:
    cost = {} if bops is None else {"expected_relative_bops": bops}
    return json.dumps({"phase": phase, "event": "train", "epoch": 0, "step": step, "task_loss": loss, **cost}) + "\n"


def gates_line(first: str, step: int, weight: int, activation: int) -> str:
    """What the gates decide at a step: the bits of the first layer's weight and of the head's input."""
    probabilities = {f"{first}.weight": {"4": float(weight > 2), "8": 0.25}, "head.input": {"16": 1.0}}
    bits = {f"{first}.weight": weight, "head.input": activation}
    line = {"phase": "search", "event": "gates", "epoch": step // 2, "step": step, "relative_bops": 20.0 - step / 2}
    return json.dumps(line | {"bits": bits, "probabilities": probabilities, "kept": {first: 6}}) + "\n"


def write_statistics(folder: Path, first: str = "stem") -> TensorStatistics:
    """Histograms of all four tensors, and errors of both layers."""
    noise = {"2": 6.5, "4": 20.25, "8": None}
    counts = (1, 0, 4, 16, 4, 1, 0, 0)
    signed = [Histogram(f"{name}.weight", bits, -1.5, 1.5, 1, -2.0, 2.0, counts, 1.25, noise)
              for name, bits in ((first, 2), ("head", 4))]  # fmt: skip
    unsigned = [Histogram(f"{name}.input", bits, 0.0, 3.0, 1, 0.0, 3.2, counts, 0.0, noise)
                for name, bits in ((first, 8), ("head", 16))]  # fmt: skip
    errors = (LayerError(first, 12.5, 12.5), LayerError("head", 30.0, 11.0))
    statistics = TensorStatistics(16, (*signed, *unsigned), errors, 11.0)
    statistics.save(folder / "statistics.json")
    return statistics


def write_bench(folder: Path) -> Bench:
    """The fast file takes half of the time of the float file, and `head` is slower than in float."""
    files = [FileTime("float", 1, 1, 4e-3, 2_000_000), FileTime("fast", 1, 1, 2e-3, 500_000)]
    files += [FileTime("float", None, 32, 5e-2, 2_000_000), FileTime("fast", None, 32, 6e-2, 500_000)]
    layers = (KernelTime("stem", "QGemm", 1e-5, 2e-5), KernelTime("head", "Gemm", 4e-5, 3e-5))
    bench = Bench("Counting Frame 9000", "onnxruntime 1.31", 20, tuple(files), layers)
    bench.save(folder / "bench.json")
    return bench


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
