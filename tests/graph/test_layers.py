"""The weighted layers of a network, their norms, and the operations that are not layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.graph.exported_program import export
from bayesbits.graph.layers import custom_operation_refusal, find_layers, layer_input, layer_kind, other_parameters
from bayesbits.graph.trace import trace
from tests.graph.networks import IMAGES, ROWS, Other


def test_what_is_no_layer_is_listed_with_its_macs() -> None:
    topology = trace(Other(), torch.zeros(2, 7, dtype=torch.int64))
    assert [(layer.name, layer.parameter, layer.macs) for layer in topology.layers] == [
        ("layer", "layer.weight", 14 * 16),
        ("normed", "normed.weight", 14 * 16),
        ("attention.in_proj_weight", "attention.in_proj_weight", 14 * 48),
        ("attention.out_proj", "attention.out_proj.weight", 14 * 16),
        ("weight", "weight", 14 * 12),
        ("weight#2", "weight", 14 * 12),
    ]
    found = [(entry.name, entry.what, entry.macs) for entry in topology.unsupported if entry.what != "residual operand"]
    assert found == [
        ("attention", "attention product", 2 * 2 * 7 * 7 * (2 + 2)),
        ("einsum", "attention product", 2 * 7 * 7 * 3),
    ]
    assert [(table.name, table.macs) for table in topology.tables] == [
        ("table", 0),
        ("lstm.weight_ih_l0", 14 * 12 * 4),
        ("lstm.weight_hh_l0", 14 * 12 * 3),
    ]
    assert topology.group("weight").reason == "tied weights (weight)"


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
    ((what, macs, reason),) = [(entry.what, entry.macs, entry.reason) for entry in topology.unsupported]
    assert (what, macs) == ("custom operation", 0)
    assert reason.startswith("its MACs are not known and not counted, as bayesbits_tests::halve is none of torch's own")
    assert reason.endswith("Replace it by operations of torch before attaching")
    assert 'set_experts_implementation("batched_mm")' in custom_operation_refusal("transformers::grouped_mm_fallback")
    assert (topology.group("first").reason or "").startswith("feeds custom operation")


def test_a_layer_with_a_forward_of_its_own_is_a_product_of_its_module() -> None:
    class Standardized(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight - self.weight.mean(), self.bias)

    class Renamed(nn.Conv2d):
        pass

    layers = find_layers(export(nn.Sequential(Standardized(3, 4, 1), Renamed(4, 2, 1)), (IMAGES,), {}))
    assert [(layer.name, layer.parameter, layer.macs) for layer in layers] == [
        ("0", "0.weight", 2 * 64 * 12),
        ("1", "1.weight", 2 * 64 * 8),
    ]
    assert [layer.product is None for layer in layers] == [False, True]


def test_one_module_under_two_names_is_one_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.append(model[0])
    topology = trace(model, ROWS)
    assert [(layer.name, layer.calls) for layer in topology.layers] == [("0", 2)]


@pytest.mark.parametrize(
    ("module", "kind", "inputs", "outputs", "depthwise"),
    [
        (nn.Linear(3, 5), "linear", 3, 5, False),
        (nn.Conv2d(4, 6, 3, groups=2), "conv", 4, 6, False),
        (nn.Conv1d(4, 4, 3, groups=4), "conv", 4, 4, True),
        (nn.Conv1d(4, 8, 3, groups=4), "conv", 4, 8, False),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), "conv_transpose", 4, 6, False),
    ],
)
def test_kinds_and_channels(module: nn.Module, kind: str, inputs: int, outputs: int, depthwise: bool) -> None:
    x = torch.ones(2, inputs, *[5] * (module.weight.dim() - 2))
    (found,) = find_layers(export(nn.Sequential(module), (x,), {}))
    assert (found.kind, found.inputs, found.outputs, found.depthwise) == (kind, inputs, outputs, depthwise)
    assert (layer_kind(module), layer_kind(nn.ReLU())) == (kind, None)


def test_the_input_of_a_circular_convolution_is_what_its_module_is_called_with() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"))
    program = export(model, (torch.ones(1, 2, 4),), {})
    (found,) = find_layers(program)
    assert layer_input(program, found.calls[0]).name == "relu"


def test_parameters_outside_of_layers_are_counted_where_they_are_used() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.LayerNorm(4))
    of_layers = ["0.weight", "0.bias"]
    assert other_parameters(model, of_layers, ["1"]) == 16
    assert other_parameters(model, of_layers, ["1"], {"2.weight"}) == 4
