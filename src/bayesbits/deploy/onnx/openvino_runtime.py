"""OpenVINO on the CPU: sessions, the kernels that layers become, and the machine it runs on.

This is the only file that imports openvino. OpenVINO reads files of the form "qdq", and its arithmetic is its own: it
decides by itself which operations it computes in integers, and how it rounds between them. Float operations are kept in
float32, as in training, by `OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesbits.deploy.onnx import runtime
from bayesbits.deploy.onnx.runtime import Kernel, Machine, layer_of
from bayesbits.records.integer_network import IntegerLayer, IntegerNetwork, IntegerProduct

if TYPE_CHECKING:
    from onnx import ModelProto

Array = NDArray[Any]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The shape of every input, by name."""

NAME = "openvino"
OPTIONS = {
    "INFERENCE_PRECISION_HINT": "f32",  # on processors with bfloat16 OpenVINO would take that for float operations
    # It would round what a linear layer reads to 8 bits, in groups, where only the layer's weight is quantized.
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "NUM_STREAMS": 1,
}
"""The options that every session is compiled with."""
INTEGERS = frozenset(("i8", "u8"))
"""The precisions of integer kernels, as OpenVINO writes them."""
WEIGHTED = frozenset(("Convolution", "Deconvolution", "FullyConnected", "MatMul"))
"""The kernels that multiply data with a weight, as OpenVINO names them."""


@dataclass(frozen=True)
class Operation:
    """One operation that OpenVINO runs, after its fusions."""

    kind: str
    """Its type, such as "Convolution"."""
    precision: str
    """What it computes with, such as "u8" or "f32"."""
    made_of: tuple[str, ...]
    """The names of the nodes of the file that were fused into it."""


class Session:
    """A model that is compiled once for every shape of inputs that it is called with, as its kernels depend on it."""

    def __init__(self, model: ModelProto | bytes | str | Path, *, threads: int | None = None) -> None:
        import onnx

        if isinstance(model, str | Path):
            model = onnx.load(str(model))
        elif isinstance(model, bytes):
            model = onnx.load_from_string(model)
        self.inputs = [value.name for value in model.graph.input]
        self.outputs = [value.name for value in model.graph.output]
        self._content = model.SerializeToString()
        self._options: dict[str, Any] = OPTIONS | ({} if threads is None else {"INFERENCE_NUM_THREADS": threads})
        self._compiled: dict[Shapes, Any] = {}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""
        compiled = self.compiled({name: feeds[name].shape for name in self.inputs})
        results = compiled({name: feeds[name] for name in self.inputs})
        return {name: np.array(results[index]) for index, name in enumerate(self.outputs)}

    def operations(self, shapes: Mapping[str, Sequence[int]]) -> Iterator[Operation]:
        """The operations that run for inputs of these shapes."""
        for node in self.compiled(shapes).get_runtime_model().get_ordered_ops():
            about = node.get_rt_info()
            kind, precision, names = (
                about[key].astype(str) if key in about else ""
                for key in ("layerType", "runtimePrecision", "originalLayersNames")
            )
            yield Operation(kind, precision, tuple(names.split(",")))

    def compiled(self, shapes: Mapping[str, Sequence[int]]) -> Any:
        """OpenVINO's compiled model for inputs of these shapes."""
        key = tuple((name, tuple(shapes[name])) for name in self.inputs)
        if key not in self._compiled:
            read = _core().read_model(self._content)
            read.reshape({name: list(shape) for name, shape in key})
            self._compiled[key] = _core().compile_model(read, "CPU", self._options)
        return self._compiled[key]


def kernels(model: ModelProto, network: IntegerNetwork) -> tuple[Kernel, ...]:
    """The kernel that every layer and every product of two activations became in OpenVINO, for the inputs that the
    network was attached with.

    Where the calls of a layer became different kernels, one that is no integer kernel is reported.
    """
    structure = network.structure
    shapes = dict(zip(structure.inputs, structure.input_shapes, strict=True))
    # OpenVINO names a node after the output of the network that it computes.
    computed = {name: node.name for node in model.graph.node for name in node.output}
    found: dict[str, list[Operation]] = {}
    for operation in Session(model).operations(shapes):
        if operation.kind in WEIGHTED:
            names = {name.split("/")[0] for name in operation.made_of}
            for layer in {layer_of(computed.get(name, name)) for name in names}:
                found.setdefault(layer, []).append(operation)
    return tuple(_kernel(part, found.get(part.name, [])) for part in network.parts)


def machine() -> Machine:
    """The processor and the runtime of this process."""
    import openvino

    version = str(openvino.__version__).partition("-")[0]
    return replace(runtime.machine(), runtime=f"{NAME} {version}")


@cache
def _core() -> Any:
    """The one core of this process.

    A core sets the stack that signal handlers run on, and sets the former one again when it is freed. Of two cores, the
    second one then sets the stack of the first, which is freed: the next Ctrl-C would end in a segmentation fault.
    """
    import openvino

    return openvino.Core()


def _kernel(layer: IntegerLayer | IntegerProduct, operations: Sequence[Operation]) -> Kernel:
    others = [operation for operation in operations if operation.precision not in INTEGERS]
    shown = next(iter([*others, *operations]), None)
    name = "not found" if shown is None else f"{shown.kind} {shown.precision}"
    if operations and not others:
        return Kernel(layer.name, name, True, None)
    reason = (
        f"{NAME} computes it in float, or as a part of another layer"
        if shown is None
        else f"{NAME} computes it in float"
    )
    return Kernel(layer.name, name, False, layer.reason if layer.arithmetic == "float" else reason)
