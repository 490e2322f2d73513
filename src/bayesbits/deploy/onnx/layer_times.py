"""The time of every layer in the integer file and in the float file, from the runtime's profile of both.

A node of the integer file has the name of its layer. A node of the float file is found by the module that torch's
exporter wrote beside it, which is the layer or the batch norm behind it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.latency import feeds_of
from bayesbits.deploy.onnx.runtime import layer_of, profile
from bayesbits.graph.flat_network import inner_path
from bayesbits.records.topology import Topology
from bayesbits.utils.optional_packages import require_extras

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

SCOPES = "pkg.torch.onnx.name_scopes"
REORDERED = "_nchwc"
"""What the runtime appends to the name of a convolution's output when it computes it in blocks of channels."""
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class LayerTime:
    """The time of one layer in both files, without the quantizers beside it."""

    layer: str
    kernel: str
    """The operation of the integer file."""
    seconds: float
    float_seconds: float

    @property
    def slower(self) -> bool:
        """Whether the layer takes longer than in float."""
        return self.seconds > self.float_seconds


def measure_layer_times(
    float_file: str | Path,
    integer_file: str | Path,
    small: DeployedNetwork,
    topology: Topology,
    example_inputs: Any,
    *,
    rounds: int = 20,
) -> list[LayerTime]:
    """Profile both files with one thread and one example; layers that are found in both are returned, in their order.

    `topology` is that of the network which was deployed.
    """
    require_extras("measuring layers", "onnx")
    import onnx

    feeds = feeds_of(small, example_inputs, 1)
    layers = float_layers(onnx.load(str(float_file)), topology)
    in_float: dict[str, float] = {}
    for name, (_, seconds) in profile(float_file, feeds, rounds).items():
        layer = layers.get(name) or layers.get(name.removesuffix(REORDERED))
        if layer is not None:
            in_float[layer] = in_float.get(layer, 0.0) + seconds
    found: dict[str, tuple[str, float]] = {}
    for name, (kernel, seconds) in profile(integer_file, feeds, rounds).items():
        found[layer_of(name)] = (kernel, seconds + found.get(layer_of(name), (kernel, 0.0))[1])
    return [
        LayerTime(layer.name, *found[layer.name], in_float[layer.name])
        for layer in small.integer.layers
        if layer.name in found and layer.name in in_float
    ]


def float_layers(model: ModelProto, topology: Topology) -> dict[str, str]:
    """The layer of every node that computes one, by the node's name and by the tensors that may replace its name.

    The runtime names a convolution after its output where it changes the layout; where an activation function is fused
    into it, after the output of that function.
    """
    owners = {layer.norm: layer.name for layer in topology.layers if layer.norm is not None}
    owners |= {layer.name: layer.name for layer in topology.layers}
    made: dict[str, str] = {}
    for node in model.graph.node:
        layer = owners.get(_module(node)) if node.op_type in WEIGHTED else None
        if layer is None:
            layer = next((made[name] for name in node.input if name in made), None) if len(node.output) == 1 else None
            if layer is not None and node.op_type not in WEIGHTED:
                made[node.output[0]] = layer
            continue
        made |= {node.name: layer, node.output[0]: layer}
    return made


def _module(node: NodeProto) -> str:
    """The path of the innermost module that a node belongs to."""
    scopes: Mapping[str, str] = {entry.key: entry.value for entry in node.metadata_props}
    paths = ast.literal_eval(scopes.get(SCOPES, "[]"))
    return inner_path(paths[-2]) if len(paths) > 1 else ""
