"""Layers of every kind, with and without a batch norm, in the smallest networks that have them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from tests.deploy.comparison import call, check_equal
from tests.deploy.networks import IMAGES, chain, compress
from tests.graph.networks import randomize


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


class SharedEncoder(nn.Module):
    """Two images through the same layers and batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(6, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head((self.encoder(left) - self.encoder(right)).abs())


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "valid padding, dilation": (lambda: chain(nn.Conv2d(6, 4, 3, padding="valid", dilation=2)), IMAGES),
    "transposed": (lambda: chain(nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), nn.BatchNorm2d(4)), IMAGES),
    "transposed with groups": (lambda: chain(nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2)), IMAGES),
    "transposed with groups, norm": (
        lambda: chain(nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2), nn.BatchNorm2d(4)),
        IMAGES,
    ),
    "transposed depthwise, norm": (
        lambda: chain(nn.ConvTranspose2d(6, 6, 2, stride=2, groups=6), nn.BatchNorm2d(6)),
        IMAGES,
    ),
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


@pytest.mark.parametrize("form", ["fast", "compact"])
def test_a_shared_encoder_is_folded_and_loses_channels_in_all_of_its_calls(form, tmp_path):
    torch.manual_seed(0)
    inputs = (torch.randn(4, 3, 12, 12), torch.randn(4, 3, 12, 12) + 1)
    model = randomize(SharedEncoder())
    compressor = compress(model, inputs)
    kept = compressor.plan().kept
    assert {name for name, channels in kept.items() if len(channels) < {"encoder.0": 8, "encoder.4": 6}[name]}
    small = bb.deploy(compressor)
    assert not any("batch_norm" in str(node.target) for node in small.program.graph.nodes)
    assert [layer.output for layer in small.integer.layers] == ["encoder.4.input", None, None]
    check_equal(compressor, small, inputs)
    bb.export_onnx(small, inputs, tmp_path / "small.onnx", form)
    bb.verify(compressor, small, tmp_path / "small.onnx", inputs)
