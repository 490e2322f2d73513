"""Learning the rounding of one layer: its data, its error and its loss by hand."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines.adaround_reconstruction import Examples, Reconstruction, gather
from bayesbits.baselines.adaround_rounding import RoundingGrid
from bayesbits.baselines.layerwise import float_copy
from bayesbits.graph.pointwise import apply_functions

FLOAT_INPUT = bb.Spec(input_bits=32, residual_bits=None, prune=False)


def fixed(model: nn.Module, x: Tensor, weights: int = 3, activations: int = 8) -> bb.Compressor:
    compressor = bb.attach(model.eval(), x, FLOAT_INPUT)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, weights, activations, input_bits=32))
    return compressor


def reconstruction(compressor: bb.Compressor, name: str) -> Reconstruction:
    layer = compressor.model.get_submodule(name)
    return Reconstruction(compressor.topology.layer(name), layer, None, None, partial(apply_functions, ()))


def test_loss_and_gradient_of_one_weight_by_hand():
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    model[0].weight.data.fill_(0.6)
    compressor = fixed(model, torch.tensor([[1.0], [3.0]]), 2, 32)
    compressor.attachment.quantizers["0.weight"].set_range(3.0)
    grid, problem = RoundingGrid.of(model[0]), reconstruction(compressor, "0")
    logit = torch.tensor([[math.log(3)]], requires_grad=True)  # h = 1.2 * 0.75 - 0.1 = 0.8, so w = 2 * 0.8 = 1.6
    inputs = torch.tensor([[1.0], [3.0]])
    loss = problem.loss(grid, logit, inputs, 0.6 * inputs, 0.01, 2.0)
    # The mean of x^2 is 5: 5 (1.6 - 0.6)^2 + 0.01 (1 - 0.6^2).
    assert loss.item() == pytest.approx(5 * 1.0 + 0.01 * 0.64, rel=1e-5)
    loss.backward()
    slope = 1.2 * 0.75 * 0.25
    assert logit.grad.item() == pytest.approx((5 * 2 * 1.0 * 2 - 0.01 * 4 * 0.6) * slope, rel=1e-5)
    warm_up = problem.loss(grid, logit, inputs, 0.6 * inputs, 0.0, 20.0)
    assert warm_up.item() == pytest.approx(5.0, rel=1e-5)


def test_memory_is_bounded_by_leaving_examples_out():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    seen: list[int] = []
    compressor = fixed(nn.Sequential(nn.Linear(4, 4)), x)
    for limit in (1e9, 64 * 8 * 4 / 2, 64 * 8 * 4 / 4):
        problem = reconstruction(compressor, "0")
        data = gather(problem, compressor.model, float_copy(compressor), [x[:32], x[32:]], limit, asymmetric=True)
        seen.append(sum(len(part.inputs) for part in data))
    assert seen == [64, 32, 16]


def test_scale_and_shift_are_along_the_channels_and_come_before_the_function():
    compressor = fixed(nn.Sequential(nn.Conv2d(1, 2, 1)), torch.randn(4, 1, 2, 2))
    layer, module = compressor.topology.layer("0"), compressor.model[0]
    scale, shift = torch.tensor([2.0, -1.0]), torch.tensor([10.0, 0.0])
    problem = Reconstruction(layer, module, scale, shift, torch.relu)
    output = torch.tensor([[[[1.0, -8.0]], [[3.0, -4.0]]]])
    assert problem.finish(output).tolist() == [[[[12.0, 0.0]], [[0.0, 4.0]]]]


def test_the_error_is_summed_over_channels_and_averaged_over_examples_and_positions():
    compressor = fixed(nn.Sequential(nn.Conv2d(1, 2, 1, bias=False)), torch.randn(4, 1, 1, 2))
    problem = reconstruction(compressor, "0")
    weight = torch.tensor([1.0, 2.0]).reshape(2, 1, 1, 1)
    inputs = torch.tensor([[1.0, 3.0], [2.0, 0.0], [1.0, 1.0]]).reshape(3, 1, 1, 2)
    # The squares of x and 2 x sum to 5 x^2: a mean of 5 (1 + 9 + 4 + 0 + 1 + 1) / 6.
    wanted = 5 * 16 / 6
    targets = torch.zeros(3, 2, 1, 2)
    assert problem.error(weight, inputs, targets).item() == pytest.approx(wanted)
    for batch_size in (1, 2, 3):
        assert problem.mean_error(weight, [Examples(inputs, targets)], batch_size).item() == pytest.approx(wanted)


def test_inputs_are_those_of_the_quantized_network_or_of_the_float_one():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(16, 3)
    compressor = fixed(model, x, 2, 32)
    reference = float_copy(compressor)
    problem = reconstruction(compressor, "2")
    with torch.no_grad():
        for asymmetric, first in ((True, model), (False, reference)):
            (data,) = gather(problem, model, reference, [x[:8], x[8:]], 1e9, asymmetric=asymmetric)
            torch.testing.assert_close(data.inputs, model[2].parts.input(torch.relu(first[0](x))))
            torch.testing.assert_close(data.targets, reference(x))
