"""What the deployed network and the trained simulation compute on the way, place by place."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesbits.compressor import Compressor
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.graph.exported import tensors_in
from bayesbits.integer import IntegerLayer
from bayesbits.nn.attached import AttachedLayer
from bayesbits.topology import Layer


class Recorder(fx.Interpreter):
    """Runs a deployed program and keeps what its nodes compute that are asked for."""

    def __init__(self, program: fx.GraphModule, nodes: set[str]) -> None:
        super().__init__(program)
        self._wanted = nodes
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.name in self._wanted:
            self.values[n.name] = result
        return result


def run_deployed(
    small: DeployedNetwork, inputs: list[Tensor], nodes: set[str]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The values of nodes of the program, by name, and the outputs."""
    recorder = Recorder(small.program, nodes)
    with torch.no_grad():
        outputs = recorder.run(*inputs)
    return recorder.values, list(outputs)


def layer_inputs(small: DeployedNetwork) -> dict[str, list[str]]:
    """For every layer that reads codes, the nodes that it reads, call by call."""
    found: dict[str, list[str]] = {}
    for node in small.program.graph.nodes:
        if node.op == "call_module" and str(node.target).startswith("layers."):
            name = str(node.target).partition(".")[2][1:].replace("/", ".")
            if small.integer.layer(name).arithmetic == "integer":
                found.setdefault(name, []).append(node.args[0].name)
    return found


class Simulation:
    """A copy of the trained network in evaluation, with its plan final, that tells the codes of layers' inputs."""

    def __init__(self, compressor: Compressor, small: DeployedNetwork) -> None:
        plan = compressor.plan()
        self._copy = Compressor(copy.deepcopy(compressor.model).cpu().float().eval())
        self._copy.fix(plan)
        removed = set(small.integer.structure.removed)
        self._codes: dict[str, list[Tensor]] = {}
        for layer in small.integer.layers:
            module = self._copy.model.get_submodule(layer.name)
            if layer.arithmetic == "integer" and isinstance(module, AttachedLayer):
                kept = _kept(self._copy.topology.layer(layer.name), removed)
                module.register_forward_pre_hook(self._hook(layer, kept), with_kwargs=True)

    def _hook(self, layer: IntegerLayer, kept: Tensor) -> Any:
        axis = -1 if layer.kind == "linear" else 1 - len(layer.weight_shape)

        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            assert isinstance(module, AttachedLayer)
            assert module.parts.input is not None
            x = args[0] if args else kwargs["input"]
            self._codes.setdefault(layer.name, []).append(module.parts.input.codes(x).index_select(axis, kept))

        return keep

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
        """The codes that every integer layer reads, call by call, with the channels that are left; and the outputs."""
        self._codes = {}
        with torch.no_grad():
            output = self._copy.model(*args, **kwargs)
        return self._codes, list(tensors_in(output, set()))


def _kept(layer: Layer, removed: set[int]) -> Tensor:
    return torch.tensor([index for index, channel in enumerate(layer.in_channels) if channel not in removed])
