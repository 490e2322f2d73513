"""What `trace` finds in small networks: layers, MACs, tensors, couplings, reasons; and that it only reads."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.graph.trace import trace
from bayesbits.records.topology import Activation, Addition, Topology
from tests.graph.networks import (
    IMAGES,
    OWN,
    ROWS,
    DataDependent,
    Other,
    Residual,
    Twice,
    TwoInputs,
    traced,
)


def removable(topology: Topology) -> dict[str, int]:
    return {group.name: group.size for group in topology.removable_groups}


def test_residual_addition() -> None:
    _, _, topology = traced("residual")
    assert [layer.name for layer in topology.layers] == ["stem", "inner", "outer", "head"]
    assert [layer.norm for layer in topology.layers] == ["stem_norm", None, "outer_norm", None]
    pixels = 2 * 8 * 8
    assert [layer.macs for layer in topology.layers] == [pixels * 6 * 27, pixels * 24, pixels * 6 * 36, 2 * 5 * 6]
    assert topology.macs == pixels * (6 * 27 + 24 + 6 * 36) + 60
    assert removable(topology) == {"stem": 6, "inner": 4}
    stream = topology.group("stem")
    assert stream.producers == ("stem", "outer")
    assert stream.consumers == ("inner", "head")
    assert topology.layer("stem").out_channels == topology.layer("outer").out_channels == tuple(stream.channels)
    assert topology.additions == (Addition("add", ("outer_norm", None)),)
    assert [entry.what for entry in topology.unsupported] == ["residual operand"]
    assert topology.group("head").reason == "reaches the network's output"
    assert topology.output_layers == ("head",)
    assert topology.traced


def test_concatenation_and_flatten_and_a_shared_input() -> None:
    _, _, topology = traced("concatenation")
    assert removable(topology) == {"left": 4, "right": 2}
    made = topology.layer("left").out_channels + topology.layer("right").out_channels
    assert topology.layer("head").in_channels == tuple(channel for channel in made for _ in range(4))
    assert topology.activations == (
        Activation("left.input", ("left", "right"), True),
        Activation("head.input", ("head",), False),
    )
    assert topology.layer("left").in_channels == topology.layer("right").in_channels
    assert topology.group("input of left").reason == "is a network input"
    assert topology.additions == ()


def test_a_module_that_runs_twice() -> None:
    _, _, topology = traced("twice")
    layer = topology.layer("shared")
    assert (layer.calls, layer.macs) == (2, 2 * 2 * 64 * 4 * 36)
    assert layer.in_channels == layer.out_channels == topology.layer("stem").out_channels
    assert topology.activation("shared.input").consumers == ("shared",)
    assert removable(topology) == {"stem": 4}


def test_tensors_are_joined_by_a_layer_that_reads_both() -> None:
    class Joined(Twice):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            y = F.relu(self.other(x))
            return self.shared(x) + self.shared(y) + self.other(y)

    topology = trace(Joined(), IMAGES)
    assert topology.activation("other.input").consumers == ("other", "shared")


def test_two_inputs_and_a_branch_in_python() -> None:
    inputs = (torch.ones(2, 3), torch.ones(2, 5))
    topology = trace(TwoInputs(), inputs)
    assert [layer.name for layer in topology.layers] == ["left", "right", "head"]
    assert [activation.network_input for activation in topology.activations] == [True, True, False]
    assert removable(topology) == {"left": 4}
    assert topology.additions == (Addition("add", ("left", None)),)
    named = {"left": inputs[0], "right": inputs[1], "extra": True}
    assert "never" in [layer.name for layer in trace(TwoInputs(), named).layers]


def test_a_moved_input_is_still_the_network_input_and_a_scaled_one_is_not() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale
            self.layer = nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(2)
            return self.layer(x if self.scale == 1 else x * self.scale)

    assert trace(Scaled(1.0), IMAGES).activations[0].network_input
    assert not trace(Scaled(2.0), IMAGES).activations[0].network_input


def test_an_output_of_an_unknown_class_is_read() -> None:
    class Result:
        def __init__(self, scores: Tensor, memory: list[Tensor]) -> None:
            self.scores, self.memory = scores, memory

    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Result:
            x = F.relu(self.first(x))
            return Result(self.last(F.relu(self.middle(x))), [x])

    topology = trace(Returning(), ROWS)
    assert topology.traced
    assert removable(topology) == {"middle": 6}
    assert topology.output_layers == ("first", "last")


def test_a_layer_that_nobody_reads_is_listed() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.unused(x)
            return self.used(x)

    topology = trace(Unused(), ROWS)
    assert [layer.name for layer in topology.layers] == ["used"]
    assert [(entry.name, entry.what) for entry in topology.unsupported] == [("unused", "unused layer")]


def test_a_network_that_is_one_layer() -> None:
    topology = trace(nn.Linear(4, 2), ROWS)
    assert [(layer.name, layer.parameter, layer.macs) for layer in topology.layers] == [("", "weight", 24)]


@pytest.mark.filterwarnings("ignore:.*torch.export cannot take it")
@pytest.mark.parametrize(
    ("name", "training"),
    [("residual", True), ("residual", False), ("twice", True), ("data dependent", True), ("other", True)],
)
def test_tracing_changes_nothing(name: str, training: bool) -> None:
    others: dict[str, tuple[Any, Any]] = {
        "data dependent": (DataDependent, ROWS),
        "other": (Other, torch.zeros(2, 7, dtype=torch.int64)),
    }
    make, inputs = (OWN | others)[name]
    model = make().train(training)
    list(model.modules())[-1].train(not training)
    state = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    attributes = {key: set(vars(module)) for key, module in model.named_modules()}
    random = torch.get_rng_state()
    trace(model, inputs)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == flags
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert {key: set(vars(module)) for key, module in model.named_modules()} == attributes
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key


@pytest.mark.parametrize("name", OWN)
def test_json_round_trip(name: str) -> None:
    _, _, topology = traced(name)
    assert Topology.from_json(topology.to_json()) == topology


def test_a_network_without_layers_is_an_error_that_says_what_was_found() -> None:
    with pytest.raises(ValueError, match=r"no weighted layer of Sequential runs.*0 \(embedding\)"):
        trace(nn.Sequential(nn.Embedding(4, 4)), torch.zeros(2, dtype=torch.int64))


def test_the_forms_of_inputs() -> None:
    model = Residual()
    expected = trace(model, IMAGES)
    assert trace(model, (IMAGES,)) == trace(model, [IMAGES]) == trace(model, {"x": IMAGES}) == expected


def test_wrong_inputs() -> None:
    with pytest.raises(TypeError, match="example_inputs is a int; give a tensor, a tuple"):
        trace(Residual(), 3)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="channels"):  # what the network itself says
        trace(Residual(), IMAGES[:, :2])
