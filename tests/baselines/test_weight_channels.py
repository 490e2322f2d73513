"""Channels of weights: one layout for all kinds of layers, factors by hand, and magnitudes with a folded batch norm."""

import copy

import pytest
import torch
from torch import nn

from bayesbits.baselines.weight_channels import Magnitudes, by_channels, rescale
from bayesbits.graph.layer_paths import read_layer_paths

LAYERS = {
    "linear": nn.Linear(4, 6),
    "convolution": nn.Conv2d(4, 6, 3),
    "groups": nn.Conv2d(4, 6, 3, groups=2),
    "transposed": nn.ConvTranspose2d(4, 6, 3),
    "transposed groups": nn.ConvTranspose2d(4, 6, 3, groups=2),
}


def read(model: nn.Module):
    shape = (1, 4) if isinstance(model[0], nn.Linear) else (1, 4, 5, 5)
    return read_layer_paths(model, torch.randn(shape))


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_output_channel_o_reads_its_inputs_by_row_o(layer):
    model = nn.Sequential(copy.deepcopy(layer)).eval()
    found = read(model).layers["0"]
    groups = found.groups
    rows = by_channels(found, model[0].weight.detach())
    assert rows.shape[:2] == (6, 4 // groups)
    for output in range(6):
        for channel in range(4):
            x = torch.zeros(1, 4) if isinstance(layer, nn.Linear) else torch.zeros(1, 4, 5, 5)
            x[0, channel, ...] = 1
            with torch.no_grad():
                value = (model(x) - model(torch.zeros_like(x)))[0, output]
            own = channel // (4 // groups) == output // (6 // groups)
            inside = value if value.dim() == 0 else value[value.shape[0] // 2, value.shape[1] // 2]
            wanted = rows[output, channel % (4 // groups)].sum() if own else torch.tensor(0.0)
            torch.testing.assert_close(inside, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_inputs_are_multiplied_and_outputs_divided(layer):
    model = nn.Sequential(copy.deepcopy(layer)).eval()
    x = torch.randn(2, 4) if isinstance(layer, nn.Linear) else torch.randn(2, 4, 5, 5)
    shape = [1, -1] + [1] * (x.dim() - 2)
    of_inputs, of_outputs = torch.tensor([2.0, 0.5, 1.0, 4.0]).double(), torch.arange(1.0, 7.0).double()
    with torch.no_grad():
        wanted = model(x * of_inputs.float().reshape(shape)) / of_outputs.float().reshape(shape)
        rescale(read(model).layers["0"], None, of_inputs, of_outputs)
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)


def test_a_batch_norm_takes_the_factor_of_the_outputs():
    model = nn.Sequential(nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([3.0, 4.0]))
        model[1].bias.copy_(torch.tensor([6.0, 8.0]))
    before = model[0].weight.detach().clone()
    rescale(read(model).layers["0"], model[1], torch.ones(4).double(), torch.tensor([3.0, 2.0]).double())
    assert model[1].weight.tolist() == [1.0, 2.0]
    assert model[1].bias.tolist() == [2.0, 4.0]
    assert torch.equal(model[0].weight, before)


def test_magnitudes_are_the_largest_of_the_folded_weight_by_hand():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, eps=0.0), nn.ReLU(), nn.Linear(2, 1)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -3.0], [2.0, 0.5]]))
        model[1].weight.copy_(torch.tensor([-4.0, 1.0]))
        model[1].running_var.copy_(torch.tensor([4.0, 1.0]))
        model[3].weight.copy_(torch.tensor([[5.0, -7.0]]))
    between = read_layer_paths(model, torch.randn(3, 2))
    channels = between.scalable_channels()
    first, second = (Magnitudes(between.layers[name], between, channels) for name in ("0", "3"))
    assert first.values.tolist() == [[2.0, 6.0], [2.0, 0.5]]  # the factors are -4 / sqrt(4) and 1
    (group,) = [group for group in channels.groups if group.producers == ("0",)]
    scale = torch.ones(sum(one.size for one in channels.groups), dtype=torch.float64)
    assert first.of_outputs(group, scale).tolist() == [6.0, 2.0]
    assert second.of_inputs(group, scale).tolist() == [5.0, 7.0]
    scale[group.first : group.first + 2] = torch.tensor([2.0, 4.0]).double()
    assert first.of_outputs(group, scale).tolist() == [3.0, 0.5]
    assert second.of_inputs(group, scale).tolist() == [10.0, 28.0]
