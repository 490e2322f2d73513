"""Where a range ends: by each method, for dead tensors and for values of any size."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayesbits.compression import range_estimation
from bayesbits.compression.calibration import calibrate_activations, calibrate_weight
from bayesbits.compression.range_estimation import METHODS, least_error, least_error_of_two_ends, round_to_bits
from bayesbits.nn import GatedQuantizer
from tests.compression.calibrated import Net, batch, values


def squared_error(quantizer: GatedQuantizer, x: torch.Tensor, bits: int) -> float:
    rows = x.reshape(quantizer.log_beta.numel(), -1)
    alpha = None if quantizer.alpha is None else quantizer.alpha.detach()
    rounded = round_to_bits(rows, quantizer.beta.detach(), bits, quantizer.signed, alpha)
    return (rounded - rows).double().square().mean().item()


def test_mse_gives_up_an_outlier_where_few_bits_make_it_dear():
    net = Net()
    x = torch.cat([torch.linspace(-1, 1, 4000).reshape(-1, 4), batch(4.0)])
    calibrate_activations(net, net.quantizers(), [x], method="mse", reference_bits=4)
    assert 0.9 < net.first.beta.item() < 2.0
    calibrate_activations(net, net.quantizers(), [x], method="mse", reference_bits=16)
    assert net.first.beta.item() == pytest.approx(4.0 * 65535 / 65534, rel=1e-5)


def test_a_dead_tensor_is_named_and_gets_a_range_of_one():
    net = Net()
    with pytest.warns(UserWarning, match=r"^second\.input: all of its values are zero"):
        calibrate_activations(net, net.quantizers(), [batch(-1.0, -2.0)], method="mse")
    assert net.second.beta.item() == pytest.approx(1.0)


def test_a_percentile_of_zero_falls_back_to_the_largest_magnitude():
    net = Net()
    with pytest.warns(UserWarning, match=r"^first\.input: its range would end at zero"):
        calibrate_activations(
            net, {"first.input": net.first}, [batch(*[0.0] * 9, 2.0)], method="percentile", percentile=50
        )
    assert net.first.beta.item() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "median"}, "method must be one of minmax"),
        ({"percentile": 0.0}, "percentile"),
        ({"percentile": 100.1}, "percentile"),
        ({"percentile": math.nan}, "percentile"),
        ({"reference_bits": 1}, "width"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_options_are_checked_before_anything_runs(options, message):
    net = Net()
    with pytest.raises(ValueError, match=message):
        calibrate_activations(net, net.quantizers(), [batch(1.0)], **options)
    if "momentum" not in options:
        with pytest.raises(ValueError, match=message):
            calibrate_weight(net.first, torch.ones(2), "weight", **options)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([(1, 9000), (2, 5000), (1, 300), (5, 7), (3, 1)]),
    st.sampled_from([2, 3, 4, 8, 16, 32]),
    st.booleans(),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_the_fraction_of_least_error_is_that_of_rounding_every_value(seed, shape, bits, signed, power):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    rows = x.sign() * x.abs() ** power if signed else x.abs() ** power
    largest = rows.abs().amax(dim=1)
    whole = largest * (2**bits - 1) / (2**bits - 2) if signed and bits <= 24 else largest
    candidates = torch.stack([whole, *(largest * 0.95**index for index in range(100))])
    errors = torch.stack(
        [(round_to_bits(rows.double(), one.double(), bits, signed) - rows).square().mean(dim=1) for one in candidates]
    )
    found = least_error(rows, largest, bits, signed)
    index = (candidates - found).abs().argmin(dim=0, keepdim=True)
    assert torch.allclose(candidates.gather(0, index)[0], found, rtol=1e-6)
    # Two neighbors may have errors that float32 cannot tell apart.
    assert (errors.gather(0, index)[0] <= errors.amin(dim=0) * (1 + 1e-4) + largest.square() * 1e-13).all()


@settings(max_examples=60, deadline=None)
@given(values, values, st.sampled_from([2, 3, 4, 8]), st.booleans())
def test_minmax_clips_nothing_and_mse_is_never_worse(one, two, bits, asymmetric):
    batches = [torch.tensor(one), torch.tensor(two)]
    errors = []
    for method in ("minmax", "mse"):
        quantizer = GatedQuantizer(signed=False, asymmetric=asymmetric)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dead tensors are among the examples
            calibrate_activations(quantizer, {"x": quantizer}, batches, method=method, reference_bits=bits)
        errors.append(squared_error(quantizer, torch.cat(batches), bits))
        if method == "minmax":
            lower = -quantizer.beta if quantizer.alpha is None else quantizer.alpha
            assert all(((x <= quantizer.beta) & (x >= lower)).all() for x in batches)
            assert quantizer.signed or all((x >= 0).all() for x in batches)
    assert errors[1] <= errors[0] * (1 + 1e-4) + 1e-30


@given(st.floats(-24, 24))
def test_the_largest_value_is_inside_whatever_its_size(logarithm):
    x = torch.tensor([10.0**logarithm])
    quantizer = GatedQuantizer(signed=True)
    calibrate_weight(quantizer, x, "weight")
    assert x <= quantizer.beta
    assert quantizer.beta.item() == pytest.approx(x.item() * 255 / 254, rel=2e-5)


@pytest.mark.parametrize("method", METHODS)
def test_methods_on_weights(method):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3, 5, 5))
    largest = weight.detach().abs().amax(dim=(1, 2, 3))
    quantizer = GatedQuantizer(signed=True, beta=[1.0] * 4)
    calibrate_weight(quantizer, weight, "conv.weight", method=method, percentile=90, reference_bits=2)
    outermost = quantizer.beta * 2 / 3  # 2 bits: one step of three on each side
    inside = ("minmax", "moving_average")
    assert (torch.isclose(outermost, largest) if method in inside else outermost < 0.9 * largest).all()
    assert quantizer.log_beta.grad_fn is None
    if method == "percentile":
        expected = torch.quantile(weight.detach().abs().flatten(1), 0.9, dim=1)
        assert torch.allclose(outermost, expected)


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16, 32])
def test_the_largest_weight_is_a_number_of_the_grid(bits):
    weight = torch.tensor([[0.3, -1.0, 0.7], [0.02, 0.01, 0.05]])
    quantizer = GatedQuantizer(signed=True, bits=(bits,), beta=[1.0, 1.0])
    calibrate_weight(quantizer, weight, "weight")
    rounded = round_to_bits(weight, quantizer.beta.detach(), bits, signed=True)
    assert [rounded[0].min().item(), rounded[1].max().item()] == pytest.approx([-1.0, 0.05], rel=2e-5)


def test_few_weights_of_four_bits_are_not_made_smaller():
    """In a range that ends at the largest weight, its code is 7 where it should be 7.5: all channels shrink."""
    weight = torch.randn(200, 9, generator=torch.Generator().manual_seed(0))
    found = least_error(weight, weight.abs().amax(dim=1), 4, signed=True)
    rounded = round_to_bits(weight, found, 4, signed=True)
    gains = (rounded * weight).sum(dim=1) / weight.square().sum(dim=1)
    assert 0.99 < gains.mean() < 1.0  # 0.972 in ranges that end at the largest weight or before it


def test_channels_of_zeros_and_weights_of_zeros_get_usable_ranges():
    quantizer = GatedQuantizer(signed=True, beta=[7.0, 7.0])
    calibrate_weight(quantizer, torch.tensor([[0.0, 0.0], [2.0, -1.0]]), "conv.weight", method="mse")
    assert quantizer.beta.tolist() == pytest.approx([2.0, 2.0], rel=0.02)
    with pytest.warns(UserWarning, match=r"^conv\.weight: all of its values are zero"):
        calibrate_weight(quantizer, torch.zeros(2, 3), "conv.weight", method="percentile")
    assert quantizer.beta.tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("shift", [-1.0, 0.3, 2.0])
def test_errors_of_two_ends_from_sums_are_those_of_rounding_every_value(bits, shift):
    x = torch.randn(1, 10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + shift
    fractions = torch.linspace(1.0, 0.05, 30, dtype=torch.float64)
    alpha, beta = range_estimation.keep_ends_apart(x.amin() * fractions, x.amax() * fractions.flip(0))
    expected = range_estimation._two_ended_errors(x, alpha, beta, bits)
    found = range_estimation._two_ended_errors_from_sums(x.sort(dim=1).values, alpha, beta, bits)
    torch.testing.assert_close(found + x.square().sum(), expected, rtol=1e-6, atol=1e-7)


def test_values_below_ties_are_counted_row_by_row_as_torch_counts_them():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 1000, dtype=torch.float64, generator=generator).sort(dim=1).values
    ties = torch.randn(3, 400, dtype=torch.float64, generator=generator)  # in no order
    ties[:, :50], ties[:, 50:60] = values[:, 100:150], torch.inf  # values that are ties go to the code above
    found = range_estimation._count_below(values, ties)
    assert torch.equal(found, torch.searchsorted(values, ties))
    assert found[:, :50].tolist() == [list(range(100, 150))] * 3
    assert bool((found[:, 50:60] == 1000).all())


def test_two_ends_are_found_together_and_one_by_one():
    # Three values that 2 bits hold exactly, and outliers on either side: one end gives way at a time.
    for side in (1, -1):
        x = side * torch.tensor([-1.0, 0.0, 1.0, 2.0] * 500 + [9.0])
        alpha, beta = least_error_of_two_ends(x[None], x.min()[None], x.max()[None], 2)
        narrow, wide = (alpha, beta) if side > 0 else (-beta, -alpha)
        assert -1.5 < narrow.item() < -0.5
        assert 1.5 < wide.item() < 2.5


@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("function", [nn.functional.gelu, nn.functional.silu, nn.functional.hardswish])
def test_two_ends_fit_the_outputs_of_activation_functions_better(function, method):
    x = function(torch.randn(20_000, generator=torch.Generator().manual_seed(0)))
    for bits in (4, 8):
        errors = []
        for asymmetric in (False, True):
            quantizer = GatedQuantizer(signed=False, asymmetric=asymmetric)
            calibrate_activations(quantizer, {"x": quantizer}, [x], method=method, reference_bits=bits)
            errors.append(squared_error(quantizer, x, bits))
        assert errors[1] < 0.5 * errors[0]
