"""The networks of the benchmark of equality have biases and shifts that are not zero."""

import torch
from torch import nn

from benchmarks.equality import NETWORKS, _with_biases


def test_biases_are_changed_and_weights_are_not():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    weights = [module.weight.clone() for module in model]
    assert _with_biases(model) is model
    assert all(bool((module.bias != 0).all() and (module.bias.abs() <= 0.3).all()) for module in model)
    assert all(torch.equal(module.weight, weight) for module, weight in zip(model, weights, strict=True))


def test_shapes_fit_the_networks():
    make, shape = NETWORKS["lenet5"]
    assert make()(torch.zeros(1, *shape)).shape == (1, 10)
