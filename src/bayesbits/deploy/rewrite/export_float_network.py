"""Before the passes: the float network as a graph, for inputs of any size where its code allows that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from bayesbits.deploy.decision import Decision
from bayesbits.deploy.modules import FloatTensors
from bayesbits.deploy.rewrite.program import RewrittenProgram
from bayesbits.deploy.signature import read_arguments, sort_keyword_inputs
from bayesbits.graph.dynamic_shapes import export_dynamic, export_marked
from bayesbits.graph.export import export_functional, output_shapes
from bayesbits.graph.exported_program import read_program
from bayesbits.graph.flat_network import FlatNetwork, inner_path
from bayesbits.graph.trace import read
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.torch_private import FakeTensorMode

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default)


def export_float_network(decision: Decision) -> RewrittenProgram:
    """Export the decision's float network, read it, and check that it has the layers that were decided about."""
    model, args = decision.model, decision.args
    kwargs = sort_keyword_inputs(model, args, decision.kwargs)
    flat = FlatNetwork(model, args, kwargs)

    def export(examples: tuple[Tensor, ...], shapes: Any) -> ExportedProgram:
        return export_functional(flat, examples, shapes)[0]

    if decision.marks is None:
        found = export_dynamic(flat, export, images=decision.image_sizes)
    else:
        found = export_marked(flat, export, decision.marks)
    exported = found.exported
    copies = _GraphCopies(exported, flat.examples())
    with evaluation_mode(flat), torch.no_grad(), output_shapes(model) as module_outputs:
        returns = flat.returns()
    twin = read_program(model, copies.twin_graph, exported.graph_signature, module_outputs)
    program = RewrittenProgram(
        decision=decision,
        graph=copies.graph,
        floats=copies.floats,
        takes=read_arguments(model, args, kwargs),
        returns=returns,
        examples=flat.examples(),
        dynamic=replace(found, reasons={**found.reasons, **decision.fixed}),
        twin=twin,
        reading=read(twin, activation_products=decision.activation_products),
        node_of=copies.node_of,
    )
    decision.check_layers(program.reading.topology)
    return program


class _GraphCopies:
    """Two copies of an exported graph.

    In the first, attributes stand in place of parameters; in the twin, numbers stand in place of symbolic sizes.
    """

    def __init__(self, exported: ExportedProgram, examples: tuple[Tensor, ...]) -> None:
        self.graph, self.twin_graph, self.floats = fx.Graph(), fx.Graph(), FloatTensors()
        self.node_of: dict[fx.Node, fx.Node] = {}
        self._nodes: dict[fx.Node, fx.Node] = {}
        self._twins: dict[fx.Node, Any] = {}
        self._values: dict[fx.Node, Any] = {}
        self._exported, self._examples = exported, iter(examples)
        self._inputs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        for node in exported.graph.nodes:
            self._copy(node)

    def _copy(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._copy_placeholder(node)
        elif node.op == "output":
            results: Any = node.args[0]
            kinds = [spec.kind for spec in self._exported.graph_signature.output_specs]
            wanted = [used for used, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT]
            self.graph.output(tuple(self._nodes[used] for used in wanted))
            self.twin_graph.output(tuple(self._twins[used] for used in results if isinstance(used, fx.Node)))
        elif node.meta.get("val") is not None:  # nodes without a value are checks of sizes
            assert callable(node.target)
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: self._values[used])
            with self._mode, torch.no_grad():
                self._values[node] = node.target(*args, **kwargs)
            self._nodes[node] = self.graph.node_copy(node, lambda used: self._nodes[used])
            if node.target in VIEWS:  # elements may lie in another order in memory than those of the exported tensors
                self._nodes[node].target = aten.reshape.default
            self._copy_to_twin(node)

    def _copy_placeholder(self, node: fx.Node) -> None:
        spec = self._inputs[node.name]
        if spec.kind is InputKind.USER_INPUT:
            value = next(self._examples)
            self._nodes[node] = self.graph.node_copy(node)
        else:
            value = {**self._exported.state_dict, **self._exported.constants}[str(spec.target)]
            parameter = spec.kind is InputKind.PARAMETER
            target = self.floats.add(inner_path(str(spec.target)), value, parameter=parameter)
            self._nodes[node] = self.graph.create_node("get_attr", target, name=node.name)
        self._values[node] = self._mode.from_tensor(value)
        self._copy_to_twin(node)

    def _copy_to_twin(self, node: fx.Node) -> None:
        value = self._values[node]
        if not isinstance(value, Tensor | tuple | list):  # a size, which is a number in the twin
            self._twins[node] = value
            return
        twin = self.twin_graph.node_copy(node, lambda used: self._twins[used])
        twin.meta["val"] = value
        self._twins[node] = twin
        self.node_of[twin] = self._nodes[node]
