"""What a quantizer sees of several batches, and what each method makes of it, by hand."""

import pytest
import torch
from torch import nn

from bayesbits.compression.calibration import calibrate_activations
from bayesbits.compression.range_estimation import METHODS
from bayesbits.nn import GatedQuantizer
from tests.compression.calibrated import Net, batch, betas


def test_minmax_takes_the_largest_magnitude_of_all_batches():
    net = Net()
    calibrate_activations(net, net.quantizers(), [batch(-3.0, 1.0), batch(-1.0, 2.0)])
    assert betas(net) == pytest.approx([3.0 * 255 / 254, 2.0], rel=1e-6)  # the second one is unsigned


def test_moving_average_by_hand():
    net = Net()
    batches = [batch(-3.0, 1.0), batch(-1.0, 2.0), batch(0.5, -4.0)]
    calibrate_activations(net, net.quantizers(), batches, method="moving_average", momentum=0.75)
    first = 0.75 * (0.75 * 3.0 + 0.25 * 2.0) + 0.25 * 4.0
    second = 0.75 * (0.75 * 1.0 + 0.25 * 2.0) + 0.25 * 0.5
    assert betas(net) == pytest.approx([first * 255 / 254, second], rel=1e-6)


def test_percentile_is_the_mean_of_each_batch_s_by_hand():
    net = Net()
    one, two = torch.arange(401.0).reshape(-1, 1), -torch.arange(0.0, 802.0, 2.0).reshape(-1, 1)
    calibrate_activations(
        net, {"first.input": net.first}, [one.expand(-1, 4), two.expand(-1, 4)], method="percentile", percentile=75.0
    )
    # Interpolated between sorted values, four copies of each: 0.75 * 1603 = 1202.25 falls on copies of 300.
    assert net.first.beta.item() == pytest.approx((300.0 + 600.0) / 2 * 255 / 254, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_signed_where_a_value_below_zero_was_seen_in_any_batch(method):
    net = Net()
    calibrate_activations(net, net.quantizers(), [batch(1.0, 2.0), batch(3.0, -0.5)], method=method)
    assert (net.first.signed, net.second.signed) == (True, False)


def test_a_quantizer_that_is_called_twice_sees_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = GatedQuantizer(signed=False)

        def forward(self, x):
            return self.shared(x) + self.shared(-5 * x)

    net = Twice()
    calibrate_activations(net, {"shared": net.shared}, [batch(1.0), batch(2.0)], method="moving_average", momentum=0.5)
    assert net.shared.beta.item() == pytest.approx(7.5 * 255 / 254)
    assert net.shared.signed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_any_floating_point_dtype(method, dtype):
    quantizer = GatedQuantizer(signed=False)
    calibrate_activations(quantizer, {"x": quantizer}, [torch.tensor([-2.0, 1.0], dtype=dtype)], method=method)
    assert quantizer.beta.item() == pytest.approx(2.0, rel=0.05)


def test_a_long_calibration_keeps_a_bounded_sample_of_all_batches(monkeypatch):
    monkeypatch.setattr("bayesbits.compression.range_observer.SAMPLE", 64)
    kept = []

    def least_error(rows, largest, bits, signed):
        kept.append(rows)
        return largest

    monkeypatch.setattr("bayesbits.compression.range_observer.least_error", least_error)
    quantizer = GatedQuantizer(signed=True)
    calibrate_activations(
        quantizer, {"x": quantizer}, [torch.full((50,), float(number)) for number in range(1, 41)], method="mse"
    )
    assert kept[0].numel() <= 128
    counts = torch.bincount(kept[0].long().flatten())[1:]
    assert counts.numel() == 40
    assert counts.min() >= 1
    assert counts.max() <= 3


def two_ended() -> GatedQuantizer:
    return GatedQuantizer(signed=False, asymmetric=True)


def calibrated(*batches: torch.Tensor, **options) -> GatedQuantizer:
    quantizer = two_ended()
    calibrate_activations(quantizer, {"x": quantizer}, batches, **options)
    return quantizer


def test_both_ends_of_an_asymmetric_range_by_hand():
    batches = [torch.tensor([-3.0, 1.0]), torch.tensor([-1.0, 2.0]), torch.tensor([0.5, 4.0])]
    found = calibrated(*batches)
    assert found.kind == "asymmetric"
    assert [found.alpha.item(), found.beta.item()] == pytest.approx([-3, 4], rel=1e-6)
    found = calibrated(*batches, method="moving_average", momentum=0.75)
    low = 0.75 * (0.75 * -3.0 + 0.25 * -1.0) + 0.25 * 0.5
    high = 0.75 * (0.75 * 1.0 + 0.25 * 2.0) + 0.25 * 4.0
    assert [found.alpha.item(), found.beta.item()] == pytest.approx([low, high], rel=1e-6)
    one, two = torch.arange(-100.0, 301.0), torch.arange(-20.0, 381.0)
    found = calibrated(one, two, method="percentile", percentile=95.0)
    # 5% of 401 values lie beyond each end: 20 of them.
    assert [found.alpha.item(), found.beta.item()] == pytest.approx([(-80 + 0) / 2, (280 + 360) / 2], rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_values_on_one_side_alone(method):
    assert calibrated(torch.rand(100), method=method).kind == "unsigned"
    below = calibrated(-torch.rand(100) - 0.5, method=method)
    assert below.kind == "asymmetric"
    assert 0 < below.beta.item() < 2e-3 < -below.alpha.item() < 1.6
    nearly = calibrated(torch.cat([torch.rand(1000), torch.tensor([-1e-9])]), method=method)
    assert nearly.kind == "asymmetric"
    assert nearly.alpha.item() == pytest.approx(-1e-3 * nearly.beta.item(), rel=1e-4)
