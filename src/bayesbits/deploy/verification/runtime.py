"""onnxruntime with its default options: sessions, the graph that it really runs, and the machine."""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto

from bayesbits.deploy.verification.record import Kernel, Machine
from bayesbits.records.integer_network import IntegerLayer, IntegerNetwork

Array = NDArray[Any]

INTEGER_KERNELS = frozenset(
    {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "ConvInteger", "MatMulInteger"}
)
_INSTRUCTIONS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
_ERRORS_ONLY = 3
_MARKS = re.compile(r"(#\d+)?(_token_\d+)?$")


class Session:
    """A model loaded with default options."""

    def __init__(self, model: ModelProto | str | Path, *, threads: int | None = None, optimized: Path | None = None):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY  # it warns that an optimized graph belongs to one kind of machine
        if threads is not None:
            options.intra_op_num_threads = threads
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
        source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
        self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self._session.get_inputs()]
        self.outputs = [value.name for value in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""
        results = self._session.run(None, dict(feeds))
        return dict(zip(self.outputs, map(np.asarray, results), strict=True))


def optimized_graph(model: ModelProto) -> ModelProto:
    """What the runtime makes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        Session(model, optimized=path)
        return onnx.load(str(path))


def kernels(optimized: ModelProto, network: IntegerNetwork) -> tuple[Kernel, ...]:
    """Which operation every layer became.

    The runtime keeps the name of the node that it fuses others into, and may put a mark behind it; calls of a layer
    after the first have a number there. Where not all calls became the same, the one that is no integer kernel counts.
    """
    operations: dict[str, set[str]] = {}
    for node in optimized.graph.node:
        operations.setdefault(layer_of(node.name), set()).add(node.op_type)
    return tuple(_kernel(layer, operations.get(layer.name, set())) for layer in network.layers)


def layer_of(node: str) -> str:
    """The layer that a node of this name computes, if it computes one."""
    return _MARKS.sub("", node)


def _kernel(layer: IntegerLayer, operations: set[str]) -> Kernel:
    others = sorted(operations - INTEGER_KERNELS)
    if operations and not others:
        return Kernel(layer.name, sorted(operations)[0], True, None)
    operation = others[0] if others else "not found"
    if layer.arithmetic == "float":
        reason = layer.reason
    elif layer.kind == "conv_transpose":
        reason = "onnxruntime has no integer kernel for transposed convolutions; whole numbers in float, exact"
    else:
        reason = "onnxruntime did not fuse it"
    return Kernel(layer.name, operation, False, reason)


def machine() -> Machine:
    """The processor and the runtime."""
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
    return Machine(name, instructions, f"onnxruntime {onnxruntime.__version__}")
