"""onnxruntime with its default options: sessions, the kernels that layers become, and the machine it runs on.

This is the only file that imports onnxruntime. Another runtime needs another file like this one, such as
`openvino_runtime`: a session that takes and returns arrays by name, the kernel of every layer, and the runtime's
version.
"""

from __future__ import annotations

import json
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesbits.records.integer_network import IntegerLayer, IntegerNetwork, IntegerProduct

if TYPE_CHECKING:
    from onnx import ModelProto

Array = NDArray[Any]

NAME = "onnxruntime"
INTEGER_KERNELS = frozenset(
    {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "ConvInteger", "MatMulInteger"}
    | {"DynamicQuantizeMatMul"}
)
_INSTRUCTIONS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
_KERNEL_TIME = "_kernel_time"
_ERRORS_ONLY, _FATAL_ONLY = 3, 4
WHOLE_NUMBERS = "whole numbers in float, exact"
"""Ends the reason of a kernel that is no integer one and yet adds up nothing but integers."""
_MARKS = re.compile(r"(@\d+)?(/part\d+)?(_token_\d+)?(/sum\d*_nchwc)?$")


@dataclass(frozen=True)
class Machine:
    """The processor and the runtime."""

    cpu: str
    """The processor's model."""
    integer_instructions: tuple[str, ...]
    """The processor's instructions that integer kernels use, such as "avx512_vnni"; without a form of VNNI, products
    of unsigned and signed bytes may saturate."""
    runtime: str
    """The runtime and its version."""

    @property
    def may_saturate(self) -> bool:
        """Whether sums of two products of unsigned and signed bytes may exceed the 16 bits that they are formed in."""
        vector, exact = {"avx2", "avx512f"}, {"avx_vnni", "avx512_vnni", "amx_int8"}
        instructions = set(self.integer_instructions)
        return bool(instructions & vector) and not instructions & exact


@dataclass(frozen=True)
class Kernel:
    """The kernel that a layer or product became in the runtime's optimized graph."""

    layer: str
    operation: str
    """The operation in the optimized graph, such as "QLinearConv"."""
    integer: bool
    reason: str | None
    """Why it does not run in integers; None where it does."""

    @property
    def exact(self) -> bool:
        """Whether it adds up nothing but integers, in an integer kernel or as whole numbers in float."""
        return self.integer or (self.reason or "").endswith(WHOLE_NUMBERS)


class Session:
    """A model loaded with default options; without `optimizing` it runs node by node as it is written."""

    def __init__(
        self,
        model: ModelProto | bytes | str | Path,
        *,
        threads: int | None = None,
        optimized: Path | None = None,
        profiled: Path | None = None,
        log_severity: int = _ERRORS_ONLY,  # it warns that an optimized graph belongs to one kind of machine
        optimizing: bool = True,
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = log_severity
        if not optimizing:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if threads is not None:
            options.intra_op_num_threads = threads
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
        if profiled is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(profiled)
        if isinstance(model, str | Path):
            source: str | bytes = str(model)
        else:
            source = model if isinstance(model, bytes) else model.SerializeToString()
        self._clock = time.thread_time if threads == 1 else time.perf_counter
        self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self._session.get_inputs()]
        self.outputs = [value.name for value in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""
        results = self._session.run(None, dict(feeds))
        return dict(zip(self.outputs, map(np.asarray, results), strict=True))

    def fastest(self, feeds: Mapping[str, Array], rounds: int) -> float:
        """The seconds of the fastest of some runs; inputs and outputs are where the runtime wants them.

        With one thread it is the processor's time, which other programs on the machine do not add to.
        """
        import onnxruntime

        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for name in self.outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        for name, value in zip(self.outputs, binding.get_outputs(), strict=True):
            binding.bind_ortvalue_output(name, value)
        times, clock = [], self._clock
        for _ in range(rounds + 1):
            start = clock()
            self._session.run_with_iobinding(binding)
            times.append(clock() - start)
        return min(times[1:])

    def end_profiling(self) -> str:
        """Stop profiling; returns the path of the file."""
        return str(self._session.end_profiling())


def profile(model: str | Path, feeds: Mapping[str, Array], rounds: int) -> dict[str, tuple[str, float]]:
    """For every node of the optimized graph its operation and the seconds of its fastest run, with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(model, threads=1, profiled=Path(folder) / "profile")
        for _ in range(rounds + 1):
            session.run(feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    found: dict[str, tuple[str, float]] = {}
    for event in events:
        name = str(event["name"])
        if event.get("cat") == "Node" and name.endswith(_KERNEL_TIME):
            name, seconds = name.removesuffix(_KERNEL_TIME), event["dur"] * 1e-6
            found[name] = (event["args"]["op_name"], min(seconds, found.get(name, ("", seconds))[1]))
    return found


def check_loads(content: bytes) -> None:
    """Raise a RuntimeError where the runtime cannot load the content of a file."""
    try:
        Session(content, log_severity=_FATAL_ONLY)  # the error repeats what the log would say
    except Exception as error:  # the runtime raises many classes of its own
        raise RuntimeError(
            f"{NAME} cannot load what was exported, so that nothing was written: {error}. Please report it"
        ) from error


def kernels(model: ModelProto, network: IntegerNetwork) -> tuple[Kernel, ...]:
    """The kernel that every layer of a model became in the runtime, and every product of two activations.

    The runtime keeps the name of the node that it fuses others into, and may append a mark to it. Calls of a layer
    after the first have a number there, and so have parts of one after the first. Where the calls of a layer became
    different kernels, one that is no integer kernel is reported.
    """
    operations: dict[str, set[str]] = {}
    for node in _optimized(model).graph.node:
        operations.setdefault(layer_of(node.name), set()).add(node.op_type)
    return tuple(_kernel(part, operations.get(part.name, set())) for part in network.parts)


def operation_counts(model: ModelProto | str | Path) -> dict[str, int]:
    """How many nodes of each operation there are in the runtime's optimized graph."""
    return dict(Counter(node.op_type for node in _optimized(model).graph.node))


def layer_of(node: str) -> str:
    """The name of the layer that a node of this name computes, if it computes one."""
    return _MARKS.sub("", node)


def machine() -> Machine:
    """The processor and the runtime of this process."""
    import onnxruntime

    name, flags = platform.processor() or platform.machine(), set[str]()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            field, _, value = line.partition(":")
            if field.strip() == "model name":
                name = value.strip()
            elif field.strip() in ("flags", "Features"):
                flags = set(value.split())
    instructions = tuple(flag for flag in _INSTRUCTIONS if flag in flags)
    return Machine(name, instructions, f"{NAME} {onnxruntime.__version__}")


def _optimized(model: ModelProto | str | Path) -> ModelProto:
    """The graph that the runtime really runs."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        Session(model, optimized=path)
        return onnx.load(str(path))


def _kernel(layer: IntegerLayer | IntegerProduct, operations: set[str]) -> Kernel:
    others = sorted(operations - INTEGER_KERNELS)
    if operations and not others:
        return Kernel(layer.name, sorted(operations)[0], True, None)
    operation = others[0] if others else "not found"
    if layer.arithmetic == "float":
        reason = layer.reason
    elif isinstance(layer, IntegerProduct):
        reason = f"{NAME} did not fuse it"
    elif layer.kind == "conv_transpose":
        reason = f"{NAME} has no integer kernel for transposed convolutions; {WHOLE_NUMBERS}"
    elif layer.kind == "conv" and layer.output is None and operation == "Conv":
        reason = f"{NAME}'s ConvInteger takes many times as long; {WHOLE_NUMBERS}"
    else:
        reason = f"{NAME} did not fuse it"
    return Kernel(layer.name, operation, False, reason)
