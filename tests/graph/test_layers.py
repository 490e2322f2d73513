"""The weighted layers of a network, their norms, and the operations that are not layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.graph.channels import TAKES_FACTORS
from bayesbits.graph.exported_program import export
from bayesbits.graph.layers import custom_operation_refusal, find_layers, layer_input, layer_kind, other_parameters
from bayesbits.graph.trace import trace
from bayesbits.records.topology import Topology
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


class Normed(nn.Module):
    """A convolution and an instance norm, which `join` makes something of."""

    def __init__(self, join, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 1), norm or nn.InstanceNorm2d(4), nn.Conv2d(4, 2, 1)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.join(self, self.first(x)))


class Renamed(nn.InstanceNorm2d):
    """A class whose code nobody knows."""


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)])
def test_an_instance_norm_that_alone_reads_a_layer_is_its_own(norm) -> None:
    topology = trace(Normed(lambda model, x: model.norm(x).relu(), norm), IMAGES)
    layer = topology.layer("first")
    assert (layer.instance_norm, layer.norm) == ("norm", None)
    assert topology.layer("last").instance_norm is None
    assert topology.group("first").removable
    assert Topology.from_json(topology.to_json()) == topology
    assert topology.other_parameters == sum(parameter.numel() for parameter in norm.parameters())


@pytest.mark.parametrize(
    ("join", "norm"),
    [
        (lambda model, x: model.norm(x) + x, None),
        (lambda model, x: model.norm(x.relu()), None),
        (lambda model, x: model.norm(model.norm(x)), None),
        (lambda model, x: nn.functional.instance_norm(x), None),
        (lambda model, x: model.norm(x), Renamed(4)),
    ],
    ids=["two readers", "behind a function", "called twice", "a function", "another class"],
)
def test_other_instance_norms_keep_channels(join, norm) -> None:
    topology = trace(Normed(join, norm), IMAGES)
    assert topology.layer("first").instance_norm is None
    assert topology.group("first").reason == TAKES_FACTORS


def test_instance_norms_with_one_weight_are_nobodys_own() -> None:
    norms = [nn.InstanceNorm2d(4, affine=True) for _ in range(2)]
    norms[1].weight = norms[0].weight
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norms[0], nn.Conv2d(4, 4, 1), norms[1], nn.Conv2d(4, 2, 1))
    assert [layer.instance_norm for layer in trace(model, IMAGES).layers] == [None, None, None]


def test_instance_norms_over_other_dimensions_are_nobodys_own() -> None:
    linear = nn.Sequential(nn.Linear(8, 8), nn.InstanceNorm1d(3), nn.Linear(8, 2))
    alone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm1d(8), nn.Conv2d(4, 2, 1))
    assert trace(linear, torch.ones(2, 3, 8)).layer("0").instance_norm is None
    assert trace(alone, IMAGES[0]).layer("0").instance_norm is None


def test_batch_norm_over_positions_is_not_the_linear_layers_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(3), nn.Linear(8, 2))
    assert trace(model, torch.ones(2, 3, 8)).layer("0").norm is None
    flat = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    assert trace(flat, torch.ones(2, 8)).layer("0").norm == "1"


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
