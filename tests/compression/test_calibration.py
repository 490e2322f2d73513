"""Calibration of activations and weights: all of it, or an error that names the tensor and no change."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.compression.calibration import calibrate_activations, calibrate_weight
from bayesbits.compression.range_estimation import METHODS
from bayesbits.nn import GatedQuantizer
from tests.compression.calibrated import Net, batch, betas


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


def test_a_tensor_that_never_came_is_named_and_keeps_its_range():
    net = Net()
    with pytest.warns(UserWarning, match=r"^unused\.input: no values reached"):
        calibrate_activations(net, {**net.quantizers(), "unused.input": net.unused}, [batch(1.0), torch.empty(0, 4)])
    assert net.unused.beta.item() == pytest.approx(7.0)
    assert net.first.beta.item() == pytest.approx(1.0)


@pytest.mark.parametrize(("columns", "bits"), [(320, 8), (6000, 8), (700, 4)])
def test_the_range_of_a_channel_is_fitted_to_all_of_its_values_however_many_channels_there_are(columns, bits):
    weight = torch.randn(400, columns, generator=torch.Generator().manual_seed(0))
    quantizer = GatedQuantizer(signed=True, beta=[1.0] * 400)
    calibrate_weight(quantizer, weight, "weight", method="mse", reference_bits=bits)
    for channel in (0, 1, 399):
        alone = GatedQuantizer(signed=True)
        calibrate_weight(alone, weight[channel], "weight", method="mse", reference_bits=bits)
        assert quantizer.beta.flatten()[channel].item() == pytest.approx(alone.beta.item(), rel=1e-5)
    clipped = (quantizer.beta.flatten() / weight.abs().amax(dim=1)).median().item()
    assert clipped > (0.89 if bits == 8 else 0.7)


def test_the_weight_s_range_is_signed_and_one_for_each_channel_where_there_are_as_many():
    weight = torch.tensor([[1.0, -3.0], [0.5, 0.25]])
    whole, by_channel = GatedQuantizer(signed=False), GatedQuantizer(signed=False, beta=[1.0, 1.0])
    calibrate_weight(whole, weight, "conv.weight")
    calibrate_weight(by_channel, weight, "conv.weight")
    assert whole.beta.item() == pytest.approx(3.0 * 255 / 254)  # code 127 is 3
    assert by_channel.beta.tolist() == pytest.approx([3.0 * 255 / 254, 0.5 * 255 / 254])
    assert whole.signed
    assert by_channel.signed


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


def test_without_a_width_ranges_are_made_for_the_narrowest_one_that_a_tensor_may_have():
    torch.manual_seed(0)
    x = torch.randn(64, 32)
    rules = {"0": {"min_bits": 4, "prune": False}}
    ranges = {}
    for bits in (2, 4, None):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
        nn.init.normal_(model[0].weight)
        nn.init.normal_(model[2].weight)
        compressor = bb.attach(model, x, bb.Spec(rules=rules))
        compressor.calibrate([x], method="mse", reference_bits=bits)
        ranges[bits] = {name: q.beta.item() for name, q in compressor.attachment.quantizers.items()}
    assert ranges[None]["0.weight"] == ranges[4]["0.weight"] != ranges[2]["0.weight"]
    assert ranges[None]["2.weight"] == ranges[2]["2.weight"] != ranges[4]["2.weight"]
    assert ranges[None]["2.input"] == ranges[2]["2.input"] != ranges[4]["2.input"]


class Shared(nn.Module):
    """A tensor that a layer and a concatenation read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second, self.head = (
            nn.Conv1d(2, 4, 1),
            nn.ReLU(),
            nn.Conv1d(4, 4, 1),
            nn.Conv1d(8, 2, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x))
        return self.head(torch.cat([x, self.second(x)], 1))


@pytest.mark.parametrize(
    ("method", "reference_bits", "shared"), [("minmax", 2, True), ("mse", 8, True), ("mse", 2, False)]
)
def test_tensors_with_the_same_values_get_the_widest_of_their_ranges(method, reference_bits, shared):
    """A range for few bits is narrower on purpose, and stays with the tensor that learns its width."""
    torch.manual_seed(0)
    x = torch.randn(16, 2, 9)
    compressor = bb.attach(Shared(), x, bb.Spec.for_backend("onnxruntime"))
    names = ("relu.output", "second.input", "second.output", "head.input")
    assert compressor.topology.shared_ranges == (tuple(sorted(names)),)
    compressor.calibrate([x], method, reference_bits=reference_bits)
    quantizers = [compressor.attachment.quantizers[name] for name in names]
    ranges = {(quantizer.beta.item(), quantizer.signed) for quantizer in quantizers}
    assert (len(ranges) == 1) is shared
    if method == "minmax":
        with torch.no_grad():
            compressor.detach()
            model = compressor.model
            y = model.relu(model.first(x))
            largest = max(y.abs().max(), model.second(y).abs().max())
        assert next(iter(ranges)) == (pytest.approx(largest.item(), rel=1e-5), True)


class Joined(nn.Module):
    """A tensor with values far below zero and few above, which a layer and a concatenation read."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.cheap, self.head = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(8, 3, 1)
        nn.init.constant_(self.main.bias, -4.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.main(x)
        return self.head(torch.cat([x, self.cheap(x)], 1)).mean((2, 3))


@pytest.mark.parametrize("asymmetric", [True, False])
def test_a_shared_range_covers_the_values_of_all_that_share_it(asymmetric):
    torch.manual_seed(0)
    model, x = Joined().eval(), torch.randn(8, 2, 3, 3)
    with torch.no_grad():
        main = model.main(x)
        values = torch.cat([main, model.cheap(main)], 1)
    compressor = bb.attach(model, x, bb.Spec(output_bits=8, asymmetric_activations=asymmetric))
    compressor.calibrate([x])
    (family,) = compressor.topology.shared_ranges
    assert {"main.output", "cheap.output", "head.input"} <= set(family)
    for name in family:
        quantizer = compressor.attachment.quantizers[name]
        high = quantizer.beta.item()
        low = quantizer.alpha.item() if asymmetric else -high
        assert quantizer.kind == ("asymmetric" if asymmetric else "symmetric")
        end = 1 if asymmetric else 255 / 254  # of 255 steps a symmetric range has codes for 254
        assert low == pytest.approx(end * values.min().item(), rel=1e-5)
        assert high == pytest.approx(values.max().item() if asymmetric else -end * values.min().item(), rel=1e-5)


@pytest.mark.parametrize("method", ["minmax", "mse", "percentile", "moving_average"])
def test_without_unsigned_ranges_all_are_symmetric(method):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    x = torch.linspace(0, 1, 32).reshape(8, 4)
    spec = bb.Spec(bits=(8,), asymmetric_activations=False)
    kinds, ends = [], []
    for unsigned in (True, False):
        compressor = bb.attach(copy.deepcopy(model), x, replace(spec, unsigned_activations=unsigned))
        compressor.calibrate([x, x], method=method)
        quantizer = compressor.attachment.quantizers["2.input"]
        kinds.append(quantizer.kind)
        ends.append((quantizer.beta.item(), quantizer.step().item()))
    assert kinds == ["unsigned", "symmetric"]
    (beta, fine), (same, coarse) = ends
    assert same == pytest.approx(beta, rel=0.02)
    assert coarse == pytest.approx(fine * 255 / 127.5 * same / beta, rel=1e-3), "half of the codes are below zero"
