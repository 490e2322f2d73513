"""What the deployed network computes on the way, and where its program holds the codes of which quantizer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.deploy.modules import DEQUANTIZERS, QUANTIZERS
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.rewrite.operations import AVERAGES
from bayesbits.deploy.verification.exact import InDouble
from bayesbits.graph.exported_program import operation
from bayesbits.utils.naming import name_of

LAYERS = "layers"


@dataclass(frozen=True)
class CodesNode:
    """A node of the deployed program that holds what a quantizer of the simulation returns."""

    tensor: str
    """The quantizer's name."""
    node: str
    numbers: bool
    """Whether it holds code times step, and not the code."""
    integer: bool
    """Whether integer layers emit these codes, with nothing between that computes."""


class Recorder(fx.Interpreter):
    """Runs a deployed program and keeps what its nodes compute that are asked for.

    With `end` ("low" or "high") every layer that emits codes emits that end of them everywhere.
    """

    def __init__(self, program: fx.GraphModule, nodes: Collection[str], end: str | None = None) -> None:
        super().__init__(program)
        self._wanted, self._end = set(nodes), end
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if self._end is not None and (room_of(n) or ("", ""))[0] == LAYERS:
            layer: Any = self.submodules[str(n.target)].layer
            if layer.output is not None:
                result = torch.full_like(result, layer.output_low if self._end == "low" else layer.output_high)
        if n.name in self._wanted:
            self.values[n.name] = result
        return result


def run_deployed(
    small: DeployedNetwork, inputs: list[Tensor], nodes: Collection[str], end: str | None = None
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The values of nodes of the program, by name, and the outputs."""
    recorder = Recorder(small.program, nodes, end)
    with torch.no_grad():
        outputs = recorder.run(*inputs)
    return recorder.values, list(outputs)


class ExactRecorder(fx.Interpreter):
    """Runs a deployed program in float64, every layer and quantizer fed what the program itself computed in float32.

    `exact` holds what each wanted node makes of that.
    """

    def __init__(self, program: fx.GraphModule, known: Mapping[str, Tensor], nodes: Collection[str]) -> None:
        super().__init__(program)
        self._known, self._wanted = known, set(nodes)
        self.exact: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.name in self._wanted:
            self.exact[n.name] = result
        return self._known[n.name] if n.op == "call_module" and n.name in self._known else result


def run_exact(
    small: DeployedNetwork, inputs: list[Tensor], known: Mapping[str, Tensor], nodes: Collection[str]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The exact values of nodes of the program, each from known values in front of it, and the outputs."""
    recorder = ExactRecorder(small.program, known, nodes)
    with torch.no_grad(), InDouble():
        outputs = recorder.run(*inputs)
    return recorder.exact, list(outputs)


def room_of(node: fx.Node) -> tuple[str, str] | None:
    """What a node calls: "layers", "quantizers" or "dequantizers", and whose; None for torch's own operations."""
    if node.op != "call_module":
        return None
    room, _, key = str(node.target).partition(".")
    return room, name_of(key)


def layer_reads(small: DeployedNetwork) -> dict[str, list[CodesNode]]:
    """For every layer that reads a quantized tensor, what it reads, call by call."""
    found: dict[str, list[CodesNode]] = {}
    for node in small.program.graph.nodes:
        room = room_of(node)
        if room is not None and room[0] == LAYERS:
            layer = small.integer.layer(room[1])
            if layer.input is not None:
                source, numbers = node.all_input_nodes[0], layer.arithmetic == "float"
                emitted = _emitted(source, layer.input, small)
                found.setdefault(layer.name, []).append(CodesNode(layer.input, source.name, numbers, emitted))
    return found


def operand_codes(small: DeployedNetwork) -> dict[str, list[CodesNode]]:
    """For every quantized operand of an addition the codes of it, call by call.

    They are what its quantizer returns, or, where a layer emits them, what is dequantized. Where codes are averaged
    before that, they are what is averaged.
    """
    found: dict[str, dict[fx.Node, None]] = {}
    for node in small.program.graph.nodes:
        room = room_of(node)
        if room is not None and room[0] == DEQUANTIZERS:
            source = node.all_input_nodes[0]
            while source.op == "call_function" and AVERAGES.fullmatch(operation(source)):
                source = source.all_input_nodes[0]
            found.setdefault(room[1], {})[source] = None
    return {
        name: [CodesNode(name, source.name, False, _emitted(source, name, small)) for source in sources]
        for name, sources in found.items()
    }


def _emitted(node: fx.Node, grid: str, small: DeployedNetwork) -> bool:
    """Whether codes of this grid come from integer layers, through nothing but moves and maxima."""
    room = room_of(node)
    if room is not None:
        if room[0] == QUANTIZERS:
            return False
        return room[0] == LAYERS and small.integer.layer(room[1]).output == grid
    if node.op != "call_function":
        return False
    sources = [source for source in node.all_input_nodes if source.op != "get_attr" and operation(source) != "sym_size"]
    return bool(sources) and all(_emitted(source, grid, small) for source in sources)


def class_axes(small: DeployedNetwork) -> list[int | None]:
    """For every output the axis, from the end, along which the layer that makes it has its channels; None where other
    operations lie between that may have moved it."""
    (output,) = (node for node in small.program.graph.nodes if node.op == "output")
    results: Any = output.args[0]
    return [_class_axis(node, small) for node in results]


def _class_axis(node: fx.Node, small: DeployedNetwork) -> int | None:
    for maker in _back(node):
        room = room_of(maker)
        if room is not None and room[0] == LAYERS:
            layer = small.integer.layer(room[1])
            return -1 if layer.kind == "linear" else 1 - len(layer.weight_shape)
        if room is None and (maker.op != "call_function" or not _MOVES_AXES.isdisjoint({operation(maker)})):
            return None
    return None


_MOVES_AXES = frozenset(
    [
        "permute",
        "transpose",
        "t",
        "view",
        "reshape",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "cat",
        "stack",
        "movedim",
        "mm",
        "bmm",
        "matmul",
        "mean",
        "sum",
        "amax",
        "amin",
        "max",
        "min",
        "logsumexp",
        "select",
        "index",
        "index_select",
    ]
)


def _back(node: fx.Node) -> Iterator[fx.Node]:
    while True:
        yield node
        if not node.all_input_nodes:
            return
        node = node.all_input_nodes[0]
