"""The exported float network: inputs, float tensors, and a twin with numbers for sizes."""

import pytest
import torch
from torch import Tensor, nn

from bayesbits.deploy.decision import Decision
from bayesbits.deploy.layer_weights import LayerWeights
from bayesbits.deploy.rewrite.export_float_network import export_float_network
from bayesbits.graph.exported_program import shape
from bayesbits.graph.trace import trace
from tests.deploy.exported import exported


class Scaled(nn.Module):
    """A layer whose output is scaled by a parameter and shifted by a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.tensor([2.0, 3.0]))
        self.register_buffer("shift", torch.tensor([1.0, -1.0]))

    def forward(self, x: Tensor, *, more: Tensor) -> Tensor:
        return (self.layer(x) * self.scale + self.shift).reshape(x.shape[0], 2) + more


def decision(model: nn.Module, **parts) -> Decision:
    kwargs = {"more": torch.ones(1, 2)}
    fields = {"attached_layers": None, "removed": frozenset(), "weights": {}, "grids": {}} | parts
    return Decision(model.eval(), (torch.ones(1, 3),), kwargs, **fields)


def test_inputs_are_placeholders_and_parameters_are_float_tensors():
    model = Scaled()
    program = export_float_network(decision(model))
    assert len([node for node in program.graph.nodes if node.op == "placeholder"]) == 2
    read = {node.target for node in program.graph.nodes if node.op == "get_attr"}
    assert read == {"floats./layer/weight", "floats./layer/bias", "floats./scale", "floats./shift"}
    assert dict(program.floats.named_parameters()).keys() == {"/layer/weight", "/layer/bias", "/scale"}
    assert torch.equal(program.floats.get_buffer("/shift"), model.shift)
    assert program.floats.get_parameter("/scale") is not model.scale
    assert [argument.name for argument in program.takes] == ["x", "more"]
    assert [size.places for size in program.dynamic.sizes] == [((0, 0), (1, 0))]
    assert [tuple(example.shape) for example in program.examples] == [(1, 3), (1, 2)]


def test_the_twin_has_the_sizes_of_the_example_inputs():
    program = export_float_network(decision(Scaled()))
    (layer,) = program.reading.layers
    (call,) = layer.calls
    assert shape(call) == (1, 2)
    assert program.node_of[call].graph is program.graph
    assert all(isinstance(size, int) for node in program.node_of for size in node.meta["val"].shape)


def test_a_network_with_other_layers_than_those_decided_about_is_refused():
    model = Scaled()
    topology = trace(model, {"x": torch.ones(1, 3), "more": torch.ones(1, 2)})
    export_float_network(decision(model, attached_layers=topology.layers))
    with pytest.raises(ValueError, match="not the one that was attached to"):
        export_float_network(decision(model, attached_layers=()))
    weights = LayerWeights(32, None, None, torch.zeros(2, 4), None)
    with pytest.raises(ValueError, match=r"weight of 'layer' has shape \(2, 3\), and \(2, 4\) is stored"):
        export_float_network(decision(model, weights={"layer": weights}))
    with pytest.raises(ValueError, match="it has no layer 'other'"):
        export_float_network(decision(model, weights={"other": weights}))


class ChannelsLast(nn.Module):
    """A convolution of what lies in memory with the channels last, for which `contiguous` does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mixed, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixed(self.first(x).relu().permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.last(x).permute(0, 2, 3, 1).contiguous().view(-1, 3).sigmoid()


def test_views_of_tensors_in_another_order_in_memory_are_exported_in_all_forms(tmp_path):
    network = exported(ChannelsLast(), torch.randn(2, 3, 6, 6), count=8)
    for form in ("fast", "qdq"):
        network.verify(network.write(tmp_path / "network.onnx", form))
