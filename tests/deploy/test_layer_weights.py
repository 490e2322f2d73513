"""The final weights: the codes of the simulation, zeros for dropped channels, and nothing of removed ones."""

import dataclasses

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.layer_weights import (
    LayerWeights,
    read_weights,
    remaining_channels,
    remove_weight_channels,
    select_channels,
    stored_weights,
)
from bayesbits.graph.trace import trace
from bayesbits.records.integer_network import Grid
from tests.deploy.networks import deployed


def test_codes_are_those_of_the_simulation():
    compressor, small, _ = deployed("depthwise")
    removed = set(small.integer.structure.removed)
    assert removed
    for layer in compressor.topology.layers:
        module = compressor.model.get_submodule(layer.name)
        codes = module.parts.weight.codes(module.folded_weight())
        codes = codes[[index for index, channel in enumerate(layer.out_channels) if channel not in removed]]
        if not layer.depthwise:
            codes = codes[:, [index for index, channel in enumerate(layer.in_channels) if channel not in removed]]
        assert torch.equal(small.integer.codes(layer.name).int(), codes)


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


def layer_of(module: nn.Module, inputs: torch.Tensor, **fields):
    """The layer of a module between two others, with channel classes of our own."""
    (layer,) = trace(nn.Sequential(module), inputs).layers
    return dataclasses.replace(layer, **fields)


def test_input_and_output_channels_are_removed_along_their_axes():
    layer = layer_of(nn.Conv2d(3, 4, 1), torch.ones(1, 3, 2, 2), in_channels=(0, 1, 2), out_channels=(3, 4, 5, 6))
    weight = torch.arange(12).reshape(4, 3, 1, 1)
    assert remaining_channels(layer.out_channels, frozenset((0, 4))).tolist() == [0, 2, 3]
    assert select_channels(weight, layer, frozenset((0, 4))).flatten(1).tolist() == [[1, 2], [7, 8], [10, 11]]
    transposed = layer_of(nn.ConvTranspose2d(3, 4, 1), torch.ones(1, 3, 2, 2))
    transposed = dataclasses.replace(transposed, in_channels=(0, 1, 2), out_channels=(3, 4, 5, 6))
    weight = torch.arange(12).reshape(3, 4, 1, 1)
    assert select_channels(weight, transposed, frozenset((0, 4))).flatten(1).tolist() == [[4, 6, 7], [8, 10, 11]]
    channels = {"in_channels": (0, 1, 2, 3), "out_channels": (0, 1, 2, 3)}
    depthwise = layer_of(nn.Conv2d(4, 4, 1, groups=4), torch.ones(1, 4, 2, 2), **channels)
    assert select_channels(torch.arange(4).reshape(4, 1), depthwise, frozenset((1,))).flatten().tolist() == [0, 2, 3]
    grouped = layer_of(nn.Conv2d(4, 4, 1, groups=2), torch.ones(1, 4, 2, 2), **channels)
    assert select_channels(torch.arange(8), grouped, frozenset()).tolist() == list(range(8))


def test_steps_and_biases_lose_the_output_channels():
    layer = layer_of(nn.Linear(2, 3), torch.ones(1, 2), in_channels=(0, 1), out_channels=(2, 3, 4))
    codes, numbers = torch.arange(6, dtype=torch.int8).reshape(3, 2), torch.arange(3.0)
    found = remove_weight_channels(LayerWeights(4, codes, numbers, None, numbers), layer, frozenset((1, 3)))
    assert (found.bits, found.shape, found.weight) == (4, (2, 1), None)
    assert found.codes is not None
    assert found.codes.tolist() == [[0], [4]]
    assert found.steps is not None
    assert found.steps.tolist() == [0, 2]
    assert found.bias is not None
    assert found.bias.tolist() == [0, 2]
    one = remove_weight_channels(LayerWeights(4, codes, numbers[:1], None, None), layer, frozenset((1, 3)))
    assert one.steps is not None
    assert one.steps.tolist() == [0]  # one step for all channels
    whole = remove_weight_channels(LayerWeights(32, None, None, codes.float(), None), layer, frozenset((2,)))
    assert whole.weight is not None
    assert whole.weight.tolist() == [[2, 3], [4, 5]]
    assert whole.shape == (2, 2)


def test_a_bias_is_in_whole_numbers_of_input_step_times_weight_step():
    grid = Grid("x", 8, False, 0.5, 0, 255, 1.0)
    codes = torch.zeros(2, 1, dtype=torch.int8)
    weights = LayerWeights(4, codes, torch.tensor([0.5, 0.25]), None, torch.tensor([1.0, -1.0]))
    assert weights.bias_codes(grid).tolist() == [4, -8]
    stored = LayerWeights(4, codes, torch.tensor([0.5, 0.25]), None, torch.tensor([7, -9], dtype=torch.int32))
    assert stored.bias_codes(grid).tolist() == [7, -9]


@pytest.mark.parametrize("bits", [4, 32])
def test_batch_norm_is_folded_into_weight_and_bias(bits):
    """Factors of 2 and -3, by gamma and a variance of one quarter: gamma / sqrt(var)."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, eps=0.0)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.75, 0.5]).reshape(2, 1, 1, 1))
        model[0].bias.copy_(torch.tensor([1.0, 2.0]))
        model[1].weight.copy_(torch.tensor([1.0, -1.5]))
        model[1].bias.copy_(torch.tensor([10.0, 20.0]))
        model[1].running_mean.copy_(torch.tensor([3.0, 4.0]))
        model[1].running_var.fill_(0.25)
    inputs = torch.ones(1, 1, 2, 2)
    compressor = bb.attach(model, inputs, bb.Spec(bits=(bits,), prune=False))
    compressor.calibrate([inputs])
    compressor.fix()
    (layer,) = compressor.topology.layers
    with torch.no_grad():
        found = read_weights(compressor, layer, torch.tensor([True, True]))
        masked = read_weights(compressor, layer, torch.tensor([True, False]))
    numbers = found.weight if found.codes is None else found.codes * found.steps
    assert found.bits == bits
    assert (found.codes is None) == (bits == 32)
    largest = 1.5  # of both channels, and so the outermost code
    torch.testing.assert_close(numbers.flatten(), torch.tensor([largest, -largest]), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.bias, torch.tensor([10 + 2 * (1.0 - 3.0), 20 - 3 * (2.0 - 4.0)]))
    kept = masked.weight if masked.codes is None else masked.codes
    assert kept.flatten()[0] != 0
    assert kept.flatten()[1] == 0
    assert masked.bias.tolist()[1] == 0


def test_stored_weights_are_those_of_the_record():
    _, small, _ = deployed("residual")
    for layer in small.integer.layers:
        found = stored_weights(small.integer, layer)
        assert (found.bits, found.shape, found.weight) == (layer.bits, layer.weight_shape, None)
        assert found.codes is small.integer.codes(layer.name)
        assert found.steps is small.integer.steps(layer.name)
        assert found.bias is small.integer.bias(layer.name)


def test_without_folding_weights_are_rounded_alone_and_the_factors_are_in_the_steps(tmp_path):
    """Factors of 2 and -3: one grid for both channels while training, and a step for each in the deployed layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, eps=0.0), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([1.0, -1.5]))
        model[1].running_var.fill_(0.25)
    model.eval()
    inputs = torch.rand(4, 1, 4, 4)
    compressor = bb.attach(model, inputs, bb.Spec(bits=(4,), prune=False, fold_batch_norm=False))
    compressor.calibrate([inputs])
    compressor.fix()
    (layer,) = (one for one in compressor.topology.layers if one.norm is not None)
    with torch.no_grad():
        found = read_weights(compressor, layer, torch.tensor([True, True]))
        own = model[0].parts.weight.codes(model[0].weight)
    step = model[0].parts.weight.step().item()
    torch.testing.assert_close(found.steps, torch.tensor([2 * step, 3 * step]))
    assert torch.equal(found.codes[0], own[0].to(found.codes.dtype))
    assert torch.equal(found.codes[1], -own[1].to(found.codes.dtype))  # a negative factor turns them round
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs, tmp_path / "small.onnx")
    bb.verify(compressor, small, tmp_path / "small.onnx", inputs)
