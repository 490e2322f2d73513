"""Products with a weight: their names, where they are found again, and what they multiply."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from bayesbits.graph.exported_program import export
from bayesbits.graph.layers import find_layers, layer_input
from bayesbits.graph.trace import trace
from bayesbits.graph.weight_products import Products
from bayesbits.utils.weight_products import ProductCall
from tests.graph.networks import IMAGES, ROWS
from tests.graph.products import Functional, InputsFirst, Padded, Standardized


def products_of(model: nn.Module, x: Tensor):
    return {layer.name: layer for layer in find_layers(export(model.eval(), (x,), {}))}


def test_products_are_numbered_among_those_of_the_same_shape_children_included():
    layers = products_of(nn.Sequential(Functional(3)), IMAGES)
    assert list(layers) == ["0.first", "0.inner", "0.last"]
    assert layers["0.inner"].product is None
    calls = {name: layer.product.call for name, layer in layers.items() if layer.product is not None}
    sizes = (3, 3, 3, 3)
    assert calls == {"0.first": ProductCall("conv2d", sizes, 0), "0.last": ProductCall("conv2d", sizes, 2)}
    assert {layer.product.owner for layer in layers.values() if layer.product is not None} == {"0"}
    assert (layers["0.first"].has_bias, layers["0.last"].has_bias) == (True, False)


def test_a_weight_is_what_is_multiplied():
    layers = products_of(nn.Sequential(Standardized(3, 4, 1), nn.Flatten(2), InputsFirst(64, 5)), IMAGES)
    standardized = layers["0"].weight_value()
    assert standardized.shape == (4, 3, 1, 1)
    torch.testing.assert_close(standardized.flatten(1).mean(1), torch.zeros(4))
    assert (layers["0"].is_stored, layers["2"].is_stored) == (False, True)
    assert layers["2"].weight_shape == tuple(layers["2"].weight_value().shape) == (5, 64)
    assert (layers["2"].inputs, layers["2"].outputs, layers["2"].macs) == (64, 5, 2 * 4 * 64 * 5)


def test_groups_and_strides_are_read_from_the_call():
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters = nn.Parameter(torch.randn(3, 1, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.filters, stride=2, groups=3)

    layer = products_of(Grouped(), IMAGES)["filters"]
    assert (layer.groups, layer.depthwise, layer.inputs, layer.outputs) == (3, True, 3, 3)
    assert layer.product.geometry["stride"] == [2, 2]


def test_the_input_of_a_padding_layer_is_what_it_pads():
    model = nn.Sequential(nn.ReLU(), Padded(3, 4, 2), nn.ReLU())
    program = export(model, (IMAGES,), {})
    (found,) = find_layers(program)
    assert layer_input(program, found.calls[0]).name == "relu"


@pytest.mark.parametrize("pad", [{"mode": "reflect"}, {"value": 1.0}])
def test_other_padding_makes_another_tensor(pad):
    class Other(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.pad(x, (1, 1, 0, 0), **pad))

    program = export(nn.Sequential(nn.ReLU(), Other(3, 4, 1)), (IMAGES,), {})
    (found,) = find_layers(program)
    assert layer_input(program, found.calls[0]).name != "relu"


def test_a_transposed_matrix_is_the_parameter_where_it_is_stored_by_outputs():
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.mm(x @ self.a.T, self.b) + x @ self.b.transpose(1, 0) @ self.a

    layers = products_of(Turned(), ROWS)
    assert [(layer.name, layer.parameter, layer.weight_shape) for layer in layers.values()] == [
        ("a", "a", (5, 4)),
        ("b", "b.weight", (4, 5)),
        ("b#2", "b", (5, 4)),
        ("a#2", "a#2.weight", (4, 5)),
    ]
    assert all(layer.shared_weight for layer in layers.values())


def test_parametrized_layers_are_named_like_others():
    layers = products_of(nn.Sequential(weight_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2)), ROWS)
    assert [(layer.name, layer.parameter) for layer in layers.values()] == [("0", "0.weight"), ("2", "2.weight")]
    assert set(layers["0"].parameters) == {
        "0.bias", "0.parametrizations.weight.original0", "0.parametrizations.weight.original1"
    }  # fmt: skip


class NoLayer(nn.Module):
    """Products that are no layers, in the order of the reasons below."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.matrix = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))
        self.register_buffer("fixed", torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        x = x @ x.T @ x
        x = x @ self.fixed
        x = torch.addmm(x, x, self.matrix)
        return torch.addmm(self.matrix[0], x, self.matrix, alpha=2) + (self.matrix @ self.matrix)[0]


def test_products_of_other_forms_are_no_layers():
    program = export(NoLayer(), (torch.randn(4, 4),), {})
    found = find_layers(program)
    assert [layer.name for layer in found] == ["layer"]
    products = Products(program, found[0].calls)
    reasons = [products.obstacle(node) for node in program.nodes if node.op == "call_function"]
    assert [reason for reason in reasons if reason not in (None, "it is not called with tensors")] == [
        "its weight is not computed from parameters alone",  # x @ x.T
        "its weight is not computed from parameters alone",  # ... @ x
        "its weight is not computed from parameters alone",  # a buffer
        "it is a product of a form that no layer has",  # its bias is data
        "it is a product of a form that no layer has",  # a factor
        "it multiplies constants",
    ]
    listed = [entry for entry in trace(NoLayer(), torch.randn(4, 4)).unsupported if entry.macs]
    assert [(entry.what, entry.macs) for entry in listed] == [
        ("attention product", 64),
        ("attention product", 64),
        ("attention product", 64),
        ("functional weights", 64),
        ("functional weights", 64),
        ("functional weights", 64),
    ]
