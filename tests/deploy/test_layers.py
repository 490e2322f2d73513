"""Kinds of layers, one after the other, in the smallest networks that have them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.deploy.test_deploying import check_equal, compress
from torch import Tensor, nn

import bayesbits as bb
from tests.deploy.comparison import call
from tests.graph.networks import randomize

IMAGES = (2, 3, 8, 8)


class TwiceNormed(nn.Module):
    """Two layers with one weight, and a batch norm each, which cannot both be folded into one grid."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm, self.other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.other(self.second(F.relu(self.norm(self.first(x)))))))


def chain(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), *layers, nn.Flatten(), nn.LazyLinear(3))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "valid padding, dilation": (lambda: chain(nn.Conv2d(6, 4, 3, padding="valid", dilation=2)), IMAGES),
    "transposed": (lambda: chain(nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), nn.BatchNorm2d(4)), IMAGES),
    "transposed with groups": (lambda: chain(nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2)), IMAGES),
    "hardtanh": (lambda: chain(nn.Conv2d(6, 4, 1), nn.Hardtanh(-0.5, 0.75), nn.Conv2d(4, 4, 1)), IMAGES),
    "signed relu": (lambda: chain(nn.Conv2d(6, 4, 1), nn.LeakyReLU(), nn.ZeroPad2d(1), nn.Conv2d(4, 4, 3)), IMAGES),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 2, 3)), (2, 3, 9)),
    "three dimensions": (lambda: nn.Sequential(nn.Conv3d(1, 3, 2), nn.ReLU(), nn.Conv3d(3, 2, 1)), (2, 1, 4, 4, 4)),
    "rows of features": (lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)), (2, 5, 4)),
    "tied, two norms": (TwiceNormed, (3, 4)),
    "one layer": (lambda: nn.Linear(4, 3), (2, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_kinds_of_layers(name):
    torch.manual_seed(0)
    create, shape = NETWORKS[name]
    model, inputs = create(), torch.randn(shape)
    model(inputs)
    compressor = compress(randomize(model), inputs)
    small = bb.deploy(compressor)
    cost = compressor.cost()
    assert (small.parameter_count, small.macs) == (cost.parameters, cost.macs)
    assert all(layer.arithmetic == "integer" for layer in small.integer.layers)
    check_equal(compressor, small, inputs)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize(
    "layers",
    [
        lambda: (nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular"),),  # the layer pads codes
        lambda: (nn.Conv2d(6, 4, 4, padding="same"),),  # one more row on one side than on the other
        lambda: (nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4, affine=False)),
        lambda: (nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Dropout(0.5)),
    ],
)
def test_other_forms_of_layers_at_eight_bits(layers):
    torch.manual_seed(0)
    model, inputs = chain(*layers()), torch.randn(IMAGES)
    model(inputs)
    compressor = compress(randomize(model), inputs, bits=(8,))
    small = bb.deploy(compressor)
    assert all(layer.arithmetic == "integer" for layer in small.integer.layers)
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert ((actual - expected).norm() / expected.norm()).item() < 1e-2  # biases are rounded


def test_layers_that_rules_leave_in_float():
    torch.manual_seed(0)
    model, inputs = chain(nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(IMAGES)
    model(inputs)
    compressor = bb.attach(randomize(model).eval(), inputs, bb.Spec(bits=(8,), rules={"2": {"skip": True}}))
    compressor.calibrate([inputs])
    compressor.fix()
    small = bb.deploy(compressor)
    assert [layer.arithmetic for layer in small.integer.layers] == ["integer", "float", "integer"]
    assert "2 computes in float: its weight has 32 bits" in small.integer.notes
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert ((actual - expected).norm() / expected.norm()).item() < 2e-2  # biases of the others are rounded


def test_several_inputs_by_name_and_a_mapping_of_outputs():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 4), nn.Linear(5, 4)

        def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
            return {"sum": self.left(a) + self.right(b), "left": self.left(a) * scale}

    inputs = {"b": torch.randn(2, 5), "a": torch.randn(2, 3)}
    compressor = compress(Named(), inputs, bb.Spec(bits=(8,)), bits=(8,))
    small = bb.deploy(compressor)
    output = small(**inputs)
    assert list(output) == ["sum", "left"]
    assert torch.equal(small(inputs["a"], inputs["b"])["sum"], output["sum"])


class OwnNorm(nn.BatchNorm2d):
    """A user's own batch norm."""


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, OwnNorm, nn.SyncBatchNorm])
def test_every_class_of_batch_norm_rounds_the_folded_bias(norm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), norm(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, 4))
    nn.init.uniform_(model[1].bias)
    inputs = torch.randn(8, 3, 8, 8)
    compressor = bb.attach(model.eval(), inputs[:1])
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
    with torch.no_grad():
        torch.testing.assert_close(bb.deploy(compressor)(inputs), model(inputs), rtol=1e-5, atol=1e-5)


def test_fixed_channels_are_deployed_as_they_are_whatever_multiple_was_asked_for():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4))
    inputs = torch.randn(8, 3, 8, 8)
    compressor = bb.attach(model.eval(), inputs[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    plan = bb.Plan(bb.Plan.uniform(compressor.topology).bits, {"0": (0, 1, 2, 3, 4)})
    compressor.fix(plan)
    assert compressor.plan() == plan
    with torch.no_grad():
        torch.testing.assert_close(bb.deploy(compressor)(inputs), model(inputs), rtol=1e-4, atol=1e-5)
