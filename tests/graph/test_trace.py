"""What `trace` finds in small networks: layers, MACs, tensors, couplings, reasons; and that it only reads."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from bayesbits.graph.trace import trace
from bayesbits.records.topology import Activation, Addition, Topology
from tests.graph.networks import (
    IMAGES,
    OWN,
    ROWS,
    DataDependent,
    Residual,
    Tied,
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


def test_classes_are_numbered_without_gaps_and_groups_are_runs() -> None:
    for name in OWN:
        _, _, topology = traced(name)
        assert [channel for group in topology.groups for channel in group.channels] == list(range(topology.channels))
        assert len({group.name for group in topology.groups}) == len(topology.groups)
        for layer in topology.layers:
            for channel in layer.in_channels:
                assert layer.name in topology.group_of(channel).consumers
            for channel in layer.out_channels:
                assert layer.name in topology.group_of(channel).producers


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


def test_depthwise_follows_its_producer() -> None:
    _, _, topology = traced("depthwise")
    assert removable(topology) == {"expand": 8, "reduce": 4}
    layer = topology.layer("filter")
    assert layer.depthwise
    assert layer.in_channels == layer.out_channels == topology.layer("expand").out_channels
    assert layer.macs == 2 * 64 * 8 * 9
    assert topology.group("expand").producers == ("expand", "filter")
    assert topology.group("expand").consumers == ("filter", "reduce")


def test_shortcut_of_padded_channels() -> None:
    _, _, topology = traced("padded shortcut")
    stem, down = topology.layer("stem").out_channels, topology.layer("down").out_channels
    assert down[2:6] == stem
    assert removable(topology) == {"stem": 4, "down": 4}
    assert topology.group("stem").producers == ("stem", "down")
    assert topology.group("down").producers == ("down",)
    assert topology.group("down").consumers == ("head",)


def test_channels_are_followed_through_a_shuffle() -> None:
    _, _, topology = traced("shuffled")
    first, halved = topology.layer("first").out_channels, topology.layer("halved").out_channels
    assert topology.layer("halved").in_channels == first[4:]
    assert topology.layer("last").in_channels == tuple(c for pair in zip(first[:4], halved, strict=True) for c in pair)
    assert removable(topology) == {"first": 4, "first#2": 4, "halved": 4, "last": 3}


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


def test_one_module_under_two_names_is_one_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.append(model[0])
    topology = trace(model, ROWS)
    assert [(layer.name, layer.calls) for layer in topology.layers] == [("0", 2)]


def test_tied_weights() -> None:
    topology = trace(Tied(), ROWS)
    assert topology.layer("first").parameter == topology.layer("second").parameter == "first.weight"
    assert {topology.group(name).reason for name in ("first", "second")} == {"tied weights (first.weight)"}


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


def test_a_tensor_changed_in_place_is_read_as_it_is_then() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            x[:, :2].sigmoid_()
            return self.last(x)

    topology = trace(Changed(), ROWS)
    reasons = [topology.group_of(channel).reason for channel in topology.layer("first").out_channels]
    assert all(reasons[:2])


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


class Other(nn.Module):
    """Weights and products that are no layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layer = nn.Linear(4, 4)
        self.normed = weight_norm(nn.Linear(4, 4))
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.lstm = nn.LSTM(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.normed(self.layer(self.table(words)))
        x = self.attention(x, x, x, need_weights=False)[0]
        y = F.linear(x, self.weight) + x @ self.weight.T
        return torch.einsum("btd,bsd->bts", y, self.lstm(x)[0])


def test_what_is_no_layer_is_listed_with_its_macs() -> None:
    topology = trace(Other(), torch.zeros(2, 7, dtype=torch.int64))
    assert [layer.name for layer in topology.layers] == ["layer"]
    found = [(entry.name, entry.what, entry.macs) for entry in topology.unsupported if entry.what != "residual operand"]
    rows = 2 * 7
    assert found == [
        ("table", "embedding", 0),
        ("normed", "functional linear", rows * 16),
        ("attention", "functional linear", rows * 48),
        ("attention", "attention product", 2 * 2 * 7 * 7 * (2 + 2)),
        ("attention", "functional linear", rows * 16),
        ("linear_4", "functional linear", rows * 12),
        ("matmul", "functional weights", rows * 12),
        ("lstm", "LSTM", rows * (12 * 4 + 12 * 3)),
        ("einsum", "attention product", 2 * 7 * 7 * 3),
    ]
    assert topology.group("layer").reason == "feeds functional linear in normed"


@torch.library.custom_op("bayesbits_tests::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    return x / 2


@halve.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_operation_that_torch_does_not_know_is_listed() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(halve(self.first(x)))

    topology = trace(Custom(), ROWS)
    assert [(entry.what, entry.macs) for entry in topology.unsupported] == [("custom operation", 0)]
    assert (topology.group("first").reason or "").startswith("feeds custom operation")


def test_a_layer_with_a_forward_of_its_own_is_not_taken_for_a_stock_one() -> None:
    class Standardized(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight - self.weight.mean(), self.bias)

    class Renamed(nn.Conv2d):
        pass

    topology = trace(nn.Sequential(Standardized(3, 4, 1), Renamed(4, 2, 1)), IMAGES)
    assert [layer.name for layer in topology.layers] == ["1"]
    assert [(entry.name, entry.what, entry.macs) for entry in topology.unsupported] == [
        ("0", "functional convolution", 2 * 64 * 12)
    ]


def test_a_batch_norm_that_is_not_alone_is_nobodys_own() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(x + self.norm(x))

    topology = trace(Both(), IMAGES)
    assert topology.layer("first").norm is None
    assert topology.group("first").reason == "passes batch norm norm, which is not one layer's own"


def test_batch_norm_over_positions_is_not_the_linear_layers_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(3), nn.Linear(8, 2))
    assert trace(model, torch.ones(2, 3, 8)).layer("0").norm is None
    flat = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    assert trace(flat, torch.ones(2, 8)).layer("0").norm == "1"


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
