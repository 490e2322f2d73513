"""Histograms hold the values that are rounded, errors are those of rounding, and the network stays as it is."""

import math

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.compression.statistics import BINS, measure_statistics
from bayesbits.functional import gated_quantize
from bayesbits.nn.weight_product import attached_activation_products
from bayesbits.report.histogram_figure import codes_of, grid_of
from tests.methods.quantizers import IMAGES, network


def fixed(model, inputs, weights, activations, **spec):
    compressor = bb.attach(model.eval(), inputs, bb.Spec(bits=(2, 4, 8), prune=False, **spec))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, weights, activations))
    return compressor


def ratio(exact, rounded):
    return 10 * math.log10(exact.square().sum().item() / (rounded - exact).square().sum().item())


@pytest.fixture
def inputs():
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


def chain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def test_a_histogram_has_every_weight_with_its_range_and_its_noise(inputs):
    compressor = fixed(chain(), inputs, weights=4, activations=8)
    weight = compressor.model[2].weight.detach().clone()
    found = {one.name: one for one in measure_statistics(compressor, inputs).tensors}
    assert set(found) == {"0.weight", "2.weight", "0.input", "2.input"}
    one = found["2.weight"]
    beta = compressor.attachment.quantizers["2.weight"].beta.item()
    assert (one.bits, one.ranges, len(one.counts), sum(one.counts)) == (4, 1, BINS, weight.numel())
    assert (one.low, one.high) == pytest.approx((-beta, beta))
    assert one.clipped == pytest.approx(100 * (weight.abs() > beta).float().mean().item())
    for bits in (2, 4, 8):
        rounded = gated_quantize(weight, torch.tensor(beta), torch.ones(1), signed=True, bits=(bits,))
        assert one.signal_to_noise[str(bits)] == pytest.approx(ratio(weight, rounded), abs=1e-2)
    assert found["2.input"].low == 0.0  # behind a ReLU


def test_values_of_ranges_by_channel_are_relative_to_them(inputs):
    compressor = fixed(chain(), inputs, weights=4, activations=8, per_channel_weights=True)
    one = {found.name: found for found in measure_statistics(compressor, inputs).tensors}["0.weight"]
    assert (one.ranges, one.low, one.high) == (16, -1.0, 1.0)
    assert one.first == pytest.approx(-1.05)
    assert one.clipped == 0  # the range of a channel is its largest magnitude


def test_errors_are_of_one_layer_alone_and_of_all_up_to_it(inputs):
    model = chain()
    exact = model(inputs).detach()
    hidden = model[:2](inputs).detach()
    compressor = fixed(model, inputs, weights=4, activations=8)
    statistics = measure_statistics(compressor, inputs)
    first, second = statistics.layers
    assert first.alone == pytest.approx(first.together)  # nothing is in front of it
    assert second.alone == pytest.approx(ratio(exact, compressor.model[2](hidden).detach()), abs=1e-2)
    assert second.together == pytest.approx(ratio(exact, compressor.model(inputs).detach()), abs=1e-2)
    assert statistics.output == pytest.approx(second.together)
    assert second.alone > second.together
    assert statistics.examples == 8


def test_fewer_bits_make_larger_errors(inputs):
    errors = [measure_statistics(fixed(chain(), inputs, bits, bits), inputs).output for bits in (2, 4, 8)]
    assert errors[0] + 6 < errors[1] < errors[2] - 12


def test_a_weight_in_front_of_a_batch_norm_is_folded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    model[1].running_var.copy_(torch.tensor([0.25, 1.0, 4.0, 9.0]))
    inputs = torch.randn(8, 3, 2, 2)
    compressor = fixed(model, inputs, weights=8, activations=8)
    factor = (model[1].weight / (model[1].running_var + model[1].eps).sqrt()).detach()
    folded = model[0].weight.detach().flatten(1) * factor.abs()[:, None]
    one = {found.name: found for found in measure_statistics(compressor, inputs).tensors}["0.weight"]
    assert one.last == pytest.approx(max(one.high * 1.05, folded.max().item()))
    assert sum(one.counts) == folded.numel()
    assert one.counts[-1] == int((folded > one.last - (one.last - one.first) / BINS).sum())


def test_the_output_of_a_layer_is_that_behind_its_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))
    model[1].running_var.copy_(torch.tensor([0.01, 1.0, 4.0, 100.0]))
    model[1].bias.data.copy_(torch.tensor([0.0, 3.0, -2.0, 1.0]))
    inputs = torch.randn(8, 3, 2, 2)
    exact = model.eval()(inputs).detach()
    compressor = fixed(model, inputs, weights=4, activations=8)
    (error,) = measure_statistics(compressor, inputs).layers
    assert error.alone == pytest.approx(ratio(exact, compressor.model(inputs).detach()), abs=1e-2)
    assert error.together == pytest.approx(error.alone)


def test_the_network_stays_as_it_is(inputs):
    compressor = fixed(chain(), inputs, weights=4, activations=8)
    before = compressor.model(inputs).detach()
    state = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    compressor.model.train()
    measure_statistics(compressor, inputs)
    assert compressor.model.training
    assert "quantized" not in vars(compressor.model[0])
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    assert torch.equal(compressor.model.eval()(inputs), before)
    assert compressor.plan().bits["0.weight"] == 4


def test_products_in_a_modules_own_code_are_measured(inputs):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 6))

        def forward(self, x):
            return nn.functional.linear(x, self.weight)

    torch.manual_seed(0)
    compressor = fixed(nn.Sequential(Own()), inputs, weights=4, activations=8)
    (error,) = measure_statistics(compressor, inputs).layers
    assert error.alone == pytest.approx(error.together)
    assert 10 < error.alone < 40


def test_products_of_two_activations_are_measured_where_they_run():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.out = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(5, 2)

        def forward(self, x):
            return self.out(self.query(x) @ self.key(x).transpose(1, 2))

    torch.manual_seed(0)
    x, model = torch.randn(2, 5, 6), Attention()
    with torch.no_grad():
        left, right = model.query(x), model.key(x).transpose(1, 2)
    compressor = fixed(model, x, weights=8, activations=8, activation_products=True)
    found = measure_statistics(compressor, x)
    assert [one.name for one in found.layers] == ["query", "key", "matmul", "out"]
    quantizers = compressor.attachment.quantizers
    with torch.no_grad():
        rounded = quantizers["matmul.left"](left) @ quantizers["matmul.right"](right)
    assert found.layers[2].alone == pytest.approx(ratio(left @ right, rounded), abs=1e-2)
    assert found.layers[2].together < found.layers[2].alone  # the layers in front of it are rounded, too
    assert {"matmul.left", "matmul.right"} <= {one.name for one in found.tensors}
    assert "forward" not in vars(next(iter(attached_activation_products(compressor.model).values())))


@pytest.mark.parametrize("name", ["pact", "twn", "lrnet", "lrnet_binary", "lsq"])
def test_the_noise_of_a_weight_is_that_of_the_numbers_its_method_multiplies_with(name):
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method=name, activation_bits=8))
    compressor.calibrate([IMAGES])
    compressor.fix()
    weight = compressor.model.eval()[7].weight.detach()
    emitted = compressor.attachment.quantizers["7.weight"](weight).detach()
    expected = 10 * math.log10((weight.square().sum() / (emitted - weight).square().sum()).item())
    found = next(one for one in measure_statistics(compressor, IMAGES).tensors if one.name == "7.weight")
    assert found.signal_to_noise[str(found.bits)] == pytest.approx(expected, rel=1e-3)
    assert found.codes is None


@pytest.mark.parametrize("signed", [True, False])
def test_a_grid_that_ends_early_is_shown_as_it_is(signed):
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="dq", bits=(2, 4, 8)))
    compressor.calibrate([IMAGES])
    name = "7.weight" if signed else "7.input"
    quantizer = compressor.attachment.quantizers[name]
    with torch.no_grad():
        quantizer.log2_range.sub_(1)
        quantizer.log2_step.copy_(quantizer.log2_range - math.log2(5.3 if signed else 10.4))
    compressor.fix()
    seen = []
    quantizer.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].detach(), output.detach())))
    found = next(one for one in measure_statistics(compressor, IMAGES).tensors if one.name == name)
    (values, emitted), step = seen[-1], quantizer.step().item()
    assert (found.bits, found.codes, codes_of(found)) == (4, 11, 11)
    assert grid_of(found) == pytest.approx(sorted(set(emitted.flatten().tolist())), abs=1e-6)
    end = 5.5 * step if signed else 10 * step
    assert (found.low, found.high) == pytest.approx((-end if signed else 0.0, end))
    outside = (values > end) | (values < (-end if signed else 0.0))
    assert found.clipped == pytest.approx(100 * outside.float().mean().item(), abs=0.5)
    assert found.clipped > 0.5
    assert found.signal_to_noise["4"] == pytest.approx(ratio(values, emitted), rel=1e-2)
