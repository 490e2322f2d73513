"""The mean of a clipped normal variable, and of a layer whose input has known means."""

import math

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines.bias_correction_input_means import clipped_normal_mean, mean_of_layer
from bayesbits.baselines.weight_channels import by_channels
from bayesbits.graph.layer_paths import read_layer_paths


def test_by_hand():
    one = torch.ones(1)
    # Of a standard normal ReLU leaves the mean phi(0) = 1 / sqrt(2 pi).
    assert clipped_normal_mean(0 * one, one, 0.0, math.inf).item() == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert clipped_normal_mean(3 * one, 2 * one, -math.inf, math.inf).item() == pytest.approx(3)
    assert clipped_normal_mean(3 * one, 2 * one, 0.0, 6.0).item() == pytest.approx(3)  # clipped evenly on both sides
    assert clipped_normal_mean(-1 * one, 0 * one, 0.0, 6.0).item() == 0
    assert clipped_normal_mean(7 * one, 0 * one, 0.0, 6.0).item() == 6


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (0.0, 6.0), (-1.0, 1.0), (-math.inf, 0.5)])
def test_against_the_integral(low, high):
    mean, deviation = torch.tensor([-2.0, 0.3, 5.0]).double(), torch.tensor([1.5, 0.2, 3.0]).double()
    z = torch.linspace(-10, 10, 400_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    values = (mean[:, None] + deviation[:, None] * z).clamp(low, high) * density
    wanted = torch.trapezoid(values, z)
    torch.testing.assert_close(clipped_normal_mean(mean, deviation, low, high), wanted, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular", groups=2),
        nn.ConvTranspose2d(4, 6, 2, stride=2),
        nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
    ],
    ids=["convolution", "groups", "transposed", "transposed groups"],
)
def test_the_mean_of_a_layer_is_the_layer_of_the_mean(layer):
    model = nn.Sequential(layer)
    inputs = torch.randn(4)
    between, topology = read_layer_paths(model, torch.randn(1, 4, 4, 4)), bb.trace(model, torch.randn(1, 4, 4, 4))
    constant = inputs.reshape(1, 4, 1, 1).expand(1, 4, 4, 4)
    wanted = (layer(constant) - layer.bias.reshape(1, -1, 1, 1)).mean((0, 2, 3))
    torch.testing.assert_close(mean_of_layer(between, topology.layers[0], layer.weight, inputs), wanted)
    assert by_channels(between.layers["0"], layer.weight).shape[0] == 6
