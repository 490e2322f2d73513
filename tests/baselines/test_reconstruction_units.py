"""Layers and blocks compute with the weights that they are given; errors and batches of their examples."""

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines.reconstruction_run import layer_unit, own_biases
from bayesbits.baselines.reconstruction_units import BlockUnit, Examples, LayerUnit
from bayesbits.nn.layer import AttachedLayer

FLOAT_INPUT = bb.Spec(input_bits=32, residual_bits=None, prune=False)


def unit_of(layer: nn.Module, x: Tensor, bits: int = 3) -> LayerUnit:
    compressor = bb.attach(nn.Sequential(layer).eval(), x, FLOAT_INPUT)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, bits, 32, input_bits=32))
    layer = compressor.topology.layers[0]
    return layer_unit(compressor, layer, None, own_biases(compressor).get(layer.name))


def test_scale_and_shift_are_along_the_channels_and_come_before_the_function():
    unit = unit_of(nn.Conv2d(1, 2, 1), torch.randn(4, 1, 2, 2))
    unit.scale, unit.shift, unit.function = torch.tensor([2.0, -1.0]), torch.tensor([10.0, 0.0]), torch.relu
    output = torch.tensor([[[[1.0, -8.0]], [[3.0, -4.0]]]])
    assert unit.finish(output).tolist() == [[[[12.0, 0.0]], [[0.0, 4.0]]]]
    assert unit.finish(output[0, :, 0].T, as_rows=True).tolist() == [[12.0, 0.0], [0.0, 4.0]]


def test_the_error_is_summed_over_channels_and_averaged_over_the_rest():
    unit = unit_of(nn.Conv2d(1, 2, 1, bias=False), torch.randn(4, 1, 1, 2))
    weight = torch.tensor([1.0, 2.0]).reshape(2, 1, 1, 1)
    inputs = torch.tensor([[1.0, 3.0], [2.0, 0.0], [1.0, 1.0]]).reshape(3, 1, 1, 2)
    # The squares of x and 2 x sum to 5 x^2: a mean of 5 (1 + 9 + 4 + 0 + 1 + 1) / 6.
    whole = Examples([inputs], [], torch.zeros(3, 2, 1, 2))
    rows = Examples([inputs.reshape(6, 1, 1)], [], torch.zeros(6, 2), as_rows=True)
    for part in (whole, rows):
        output = unit.output(part.inputs, [weight], part)
        assert unit.error(output, part.targets, part).item() == pytest.approx(5 * 16 / 6)


def test_steps_have_more_rows_than_examples_and_few_where_filters_are_small():
    def part(size: int, as_rows: bool) -> Examples:
        return Examples([torch.zeros(1000, 1, size)], [], torch.zeros(1000, 2), as_rows)

    assert [one.batch(8) for one in (part(9, False), part(9, True), part(576, True))] == [8, 32, 128]
    assert part(576, True).batch(100) == 1000


def test_a_block_computes_with_the_weights_that_it_is_given():
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 1), nn.BatchNorm2d(2)
    )
    x = torch.randn(4, 3, 5, 5)
    compressor = bb.attach(nn.Sequential(block).eval(), x, FLOAT_INPUT)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 3, 32, input_bits=32))
    layers = [(f"0.{index}", block[index]) for index in (0, 3)]
    unit = BlockUnit("0", block, layers, [])
    quantizers = [layer.parts.weight for _, layer in layers]
    assert [one is x for one in unit.take_inputs(((x,), {}), 4)] == [True]
    given = [torch.randn_like(layer.weight) for _, layer in layers]
    with torch.no_grad():
        found = unit.output([x], given, Examples([x], [], x))
        for (_, layer), quantizer in zip(layers, quantizers, strict=True):
            assert isinstance(layer, AttachedLayer)
            assert layer.parts.weight is quantizer
            quantizer.turn_off()
        for (_, layer), weight in zip(layers, given, strict=True):
            layer.weight.copy_(weight)
        torch.testing.assert_close(found, compressor.model(x), rtol=1e-3, atol=1e-3)
