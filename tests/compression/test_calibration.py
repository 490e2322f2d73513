"""Calibration: ranges computed by hand, the network left as it was, and errors that name the tensor."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bayesbits as bb
from bayesbits.compression.calibration import calibrate_activations, calibrate_weight
from bayesbits.compression.range_estimation import METHODS, round_to_bits
from bayesbits.compression.sampling import SAMPLE, evenly_spaced
from bayesbits.nn import GatedQuantizer


class Net(nn.Module):
    """Two quantizers in a row, the second behind a ReLU that writes in place, and one that is never called."""

    def __init__(self):
        super().__init__()
        self.first = GatedQuantizer(signed=False, beta=7.0)
        self.second = GatedQuantizer(signed=True, beta=7.0)
        self.unused = GatedQuantizer(signed=True, beta=7.0)
        self.norm = nn.BatchNorm1d(4, affine=False)
        self.norm.num_batches_tracked.fill_(1)  # its statistics count: it has run before

    def forward(self, x, scale=1.0):
        return self.norm(self.second(torch.relu_(self.first(x) * scale)))

    def quantizers(self):
        return {"first.input": self.first, "second.input": self.second}


def batch(*values: float) -> torch.Tensor:
    """Four columns of the same values."""
    return torch.tensor(values).reshape(-1, 1).expand(-1, 4).clone()


def betas(net: Net) -> list[float]:
    return [quantizer.beta.item() for quantizer in net.quantizers().values()]


def squared_error(quantizer: GatedQuantizer, x: torch.Tensor, bits: int) -> float:
    rows = x.reshape(quantizer.log_beta.numel(), -1)
    rounded = round_to_bits(rows, quantizer.beta.detach(), bits, quantizer.signed)
    return (rounded - rows).double().square().mean().item()


def test_minmax_takes_the_largest_magnitude_of_all_batches():
    net = Net()
    calibrate_activations(net, net.quantizers(), [batch(-3.0, 1.0), batch(-1.0, 2.0)])
    assert betas(net) == pytest.approx([3.0, 2.0], rel=1e-6)


def test_moving_average_by_hand():
    net = Net()
    batches = [batch(-3.0, 1.0), batch(-1.0, 2.0), batch(0.5, -4.0)]
    calibrate_activations(net, net.quantizers(), batches, method="moving_average", momentum=0.75)
    first = 0.75 * (0.75 * 3.0 + 0.25 * 2.0) + 0.25 * 4.0
    second = 0.75 * (0.75 * 1.0 + 0.25 * 2.0) + 0.25 * 0.5
    assert betas(net) == pytest.approx([first, second], rel=1e-6)


def test_percentile_is_the_mean_of_each_batch_s_by_hand():
    net = Net()
    one, two = torch.arange(401.0).reshape(-1, 1), -torch.arange(0.0, 802.0, 2.0).reshape(-1, 1)
    calibrate_activations(
        net, {"first.input": net.first}, [one.expand(-1, 4), two.expand(-1, 4)], method="percentile", percentile=75.0
    )
    # Interpolated between sorted values, four copies of each: 0.75 * 1603 = 1202.25 falls on copies of 300.
    assert net.first.beta.item() == pytest.approx((300.0 + 600.0) / 2, rel=1e-6)


def test_mse_gives_up_an_outlier_where_few_bits_make_it_dear():
    net = Net()
    x = torch.cat([torch.linspace(-1, 1, 4000).reshape(-1, 4), batch(4.0)])
    calibrate_activations(net, net.quantizers(), [x], method="mse", reference_bits=4)
    assert 0.9 < net.first.beta.item() < 2.0
    calibrate_activations(net, net.quantizers(), [x], method="mse", reference_bits=16)
    assert net.first.beta.item() == pytest.approx(4.0, rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_signed_where_a_value_below_zero_was_seen_in_any_batch(method):
    net = Net()
    calibrate_activations(net, net.quantizers(), [batch(1.0, 2.0), batch(3.0, -0.5)], method=method)
    assert (net.first.signed, net.second.signed) == (True, False)


@pytest.mark.parametrize("method", METHODS)
def test_ranges_come_from_the_float_network_and_modes_flags_buffers_and_hooks_stay(method):
    net = Net()
    net.first.fix(8)
    net.second.turn_off()
    net.unused.set_range(0.5)
    net.norm.eval()
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    asked = [(None, p.requires_grad) for p in net.parameters()]
    calibrate_activations(net, net.quantizers(), [batch(0.3, 0.9), batch(1.0)], method=method, percentile=100)
    assert (net.first.mode, net.first.fixed_bits, net.second.mode) == ("fixed", 8, "off")
    assert net.unused.mode == "learning"
    assert net.training
    assert net.second.training
    assert not net.norm.training
    assert not net.first._forward_pre_hooks
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())
    assert [(p.grad, p.requires_grad) for p in net.parameters()] == asked
    assert net.first.beta.item() == net.second.beta.item() != 7.0


def test_a_quantizer_that_is_called_twice_sees_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = GatedQuantizer(signed=False)

        def forward(self, x):
            return self.shared(x) + self.shared(-5 * x)

    net = Twice()
    calibrate_activations(net, {"shared": net.shared}, [batch(1.0), batch(2.0)], method="moving_average", momentum=0.5)
    assert net.shared.beta.item() == pytest.approx(7.5)
    assert net.shared.signed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_any_floating_point_dtype(method, dtype):
    quantizer = GatedQuantizer(signed=False)
    calibrate_activations(quantizer, {"x": quantizer}, [torch.tensor([-2.0, 1.0], dtype=dtype)], method=method)
    assert quantizer.beta.item() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("form", [lambda x: (x, 2.0), lambda x: [x, 2.0], lambda x: {"x": x, "scale": 2.0}])
def test_batches_may_be_tuples_lists_or_dicts(form):
    net = Net()
    calibrate_activations(net, net.quantizers(), [form(batch(1.0, 3.0))])
    assert betas(net) == pytest.approx([3.0, 6.0], rel=1e-6)


def test_a_batch_with_labels_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"2 elements.*\(x for x, _ in loader\)"):
        calibrate_activations(nn.Linear(2, 2), {}, [(torch.ones(1, 2), torch.ones(1))])
    with pytest.raises(TypeError, match="a batch is a str"):
        calibrate_activations(nn.Linear(2, 2), {}, ["batch"])
    with pytest.raises(TypeError, match="must be Tensor"):
        calibrate_activations(nn.Linear(2, 2), {}, [("batch",)])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("method", METHODS)
def test_values_that_cannot_be_quantized_name_tensor_and_batch_and_change_nothing(method, value):
    net = Net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(ValueError, match=r"first\.input: batch 1 .*NaN"):
        calibrate_activations(net, net.quantizers(), [batch(1.0), batch(1.0, value), batch(value)], method=method)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.first.mode == "learning"


def test_no_batches():
    net = Net()
    with pytest.raises(ValueError, match="at least one batch"):
        calibrate_activations(net, net.quantizers(), iter(()))


def test_an_error_in_the_network_leaves_it_as_it_was():
    net = Net()
    with pytest.raises(RuntimeError):
        calibrate_activations(net, net.quantizers(), [torch.ones(2, 3)])
    assert net.first.mode == "learning"
    assert net.training
    assert not net.first._forward_pre_hooks


def test_a_tensor_that_never_came_is_named_and_keeps_its_range():
    net = Net()
    with pytest.warns(UserWarning, match=r"^unused\.input: no values reached"):
        calibrate_activations(net, {**net.quantizers(), "unused.input": net.unused}, [batch(1.0), torch.empty(0, 4)])
    assert net.unused.beta.item() == pytest.approx(7.0)
    assert net.first.beta.item() == pytest.approx(1.0)


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


values = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(values, values, st.sampled_from([2, 3, 4, 8]))
def test_minmax_clips_nothing_and_mse_is_never_worse(one, two, bits):
    batches = [torch.tensor(one), torch.tensor(two)]
    errors = []
    for method in ("minmax", "mse"):
        quantizer = GatedQuantizer(signed=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dead tensors are among the examples
            calibrate_activations(quantizer, {"x": quantizer}, batches, method=method, reference_bits=bits)
        errors.append(squared_error(quantizer, torch.cat(batches), bits))
        if method == "minmax":
            assert all((x.abs() <= quantizer.beta).all() for x in batches)
            assert quantizer.signed or all((x >= 0).all() for x in batches)
    assert errors[1] <= errors[0] * (1 + 1e-4) + 1e-30


@given(st.floats(-24, 24))
def test_the_largest_value_is_inside_whatever_its_size(logarithm):
    x = torch.tensor([10.0**logarithm])
    quantizer = GatedQuantizer(signed=True)
    calibrate_weight(quantizer, x, "weight")
    assert x <= quantizer.beta
    assert quantizer.beta.item() == pytest.approx(x.item(), rel=2e-5)


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


@pytest.mark.parametrize("shape", [(1, 512 * 512), (8, 2**16), (1, 7), (100_000, 1)])
def test_evenly_spaced_values_are_few_and_out_of_step(shape):
    columns = torch.arange(shape[1]).expand(shape)
    sample = evenly_spaced(columns, SAMPLE)
    assert sample.shape[0] == shape[0]
    assert sample.numel() <= max(SAMPLE + shape[0], shape[0])
    if shape[1] > 512:
        assert len((sample[0] % 512).unique()) == 512


def test_the_weight_s_range_is_signed_and_one_for_each_channel_where_there_are_as_many():
    weight = torch.tensor([[1.0, -3.0], [0.5, 0.25]])
    whole, by_channel = GatedQuantizer(signed=False), GatedQuantizer(signed=False, beta=[1.0, 1.0])
    calibrate_weight(whole, weight, "conv.weight")
    calibrate_weight(by_channel, weight, "conv.weight")
    assert whole.beta.item() == pytest.approx(3.0)
    assert by_channel.beta.tolist() == pytest.approx([3.0, 0.5])
    assert whole.signed
    assert by_channel.signed


@pytest.mark.parametrize("method", METHODS)
def test_methods_on_weights(method):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3, 5, 5))
    largest = weight.detach().abs().amax(dim=(1, 2, 3))
    quantizer = GatedQuantizer(signed=True, beta=[1.0] * 4)
    calibrate_weight(quantizer, weight, "conv.weight", method=method, percentile=90, reference_bits=2)
    assert (quantizer.beta > largest if method in ("minmax", "moving_average") else quantizer.beta < largest).all()
    assert quantizer.log_beta.grad_fn is None
    if method == "percentile":
        expected = torch.quantile(weight.detach().abs().flatten(1), 0.9, dim=1)
        assert torch.allclose(quantizer.beta, expected)


def test_channels_of_zeros_and_weights_of_zeros_get_usable_ranges():
    quantizer = GatedQuantizer(signed=True, beta=[7.0, 7.0])
    calibrate_weight(quantizer, torch.tensor([[0.0, 0.0], [2.0, -1.0]]), "conv.weight", method="mse")
    assert quantizer.beta.tolist() == pytest.approx([2.0, 2.0], rel=0.02)
    with pytest.warns(UserWarning, match=r"^conv\.weight: all of its values are zero"):
        calibrate_weight(quantizer, torch.zeros(2, 3), "conv.weight", method="percentile")
    assert quantizer.beta.tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("weight", [torch.tensor([[1.0], [math.nan]]), torch.tensor([[1.0], [math.inf]])])
def test_weights_that_cannot_be_quantized_are_named(weight):
    quantizer = GatedQuantizer(signed=True, beta=7.0)
    with pytest.raises(ValueError, match=r"conv\.weight: .*NaN"):
        calibrate_weight(quantizer, weight, "conv.weight")
    assert quantizer.beta.item() == pytest.approx(7.0)


@pytest.mark.parametrize("weight", [torch.ones(3, 2), torch.ones(2, 0)])
def test_weights_that_do_not_fit_are_named(weight):
    with pytest.raises(ValueError, match=r"conv\.weight: .*does not fit"):
        calibrate_weight(GatedQuantizer(signed=True, beta=[1.0, 1.0]), weight, "conv.weight")


def test_batch_norms_that_have_never_run_take_their_statistics_from_the_batches():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), GatedQuantizer(signed=True))
    batches = [torch.randn(32, 4) * 5 + 3 for _ in range(4)]
    calibrate_activations(net, {"2": net[2]}, batches)
    outputs = torch.stack([net[0](batch) for batch in batches])
    torch.testing.assert_close(net[1].running_mean, outputs.mean((0, 1)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(net[1].running_var, outputs.var(1).mean(0), rtol=1e-4, atol=1e-4)
    assert net[1].momentum == 0.1
    assert not net[1]._forward_pre_hooks
    assert 2 < net[2].beta.item() < 5  # of normalized values; with mean 0 and variance 1 it would be far more
    before = net[1].running_mean.clone()
    calibrate_activations(net, {"2": net[2]}, [torch.randn(32, 4)])
    assert torch.equal(net[1].running_mean, before)


def test_statistics_that_were_loaded_without_their_counter_are_kept():
    """Files from before torch 0.4.1 have no `num_batches_tracked`, and a network that loads one counts 0 batches."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    trained = {"1.running_mean": torch.tensor([1.0, 2, 3, 4]), "1.running_var": torch.tensor([5.0, 6, 7, 8])}
    model.load_state_dict(trained, strict=False)
    compressor = bb.attach(model, torch.randn(1, 3, 4, 4))
    compressor.calibrate([torch.randn(8, 3, 4, 4)])
    for name, value in trained.items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_width_that_is_not_learned_gets_the_range_of_its_own_width():
    torch.manual_seed(0)
    x = torch.randn(512, 4)
    ranges = {}
    for bits in (2, 8):
        compressor = bb.attach(torch.nn.Linear(4, 3), x, bb.Spec(input_bits=8, rules={"": {"prune": False}}))
        compressor.calibrate([x], method="mse", reference_bits=bits)
        ranges[bits] = {name: q.beta.item() for name, q in compressor.attachment.quantizers.items()}
    assert ranges[2][".input"] == ranges[8][".input"]  # fixed at 8 bits, whatever the learned ones are made for
    assert ranges[2]["weight"] < ranges[8]["weight"]


def test_a_width_that_is_final_gets_a_range_of_its_own_too():
    torch.manual_seed(0)
    x = torch.randn(512, 4)
    compressor = bb.attach(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), x)
    compressor.calibrate([x], method="mse", reference_bits=2)
    expected = compressor.attachment.quantizers["2.input"].beta.item()
    compressor.fix(bb.Plan.uniform(compressor.topology, 2, 2))
    compressor.calibrate([x], method="mse")
    assert compressor.attachment.quantizers["2.input"].beta.item() == expected
