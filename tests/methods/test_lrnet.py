"""LR-Net by hand: probabilities, moments, and outputs that are drawn."""

import math

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.methods.lrnet import BinaryLrnetQuantizer, LrnetQuantizer
from tests.methods.quantizers import IMAGES, network


def quantizer(zero, positive, scale=1.0):
    made = LrnetQuantizer(weight=True, bits=(2,))
    made.zero_logits.data = torch.logit(torch.tensor(zero))
    made.sign_logits.data = torch.logit(torch.tensor(positive))
    made.log_scale.data.fill_(math.log(scale))
    return made


def test_mean_variance_and_gradients_by_hand():
    """P(0) = 0.2 and P(1 | not 0) = 0.75: E = 0.8 * 0.5 = 0.4, E of the square = 0.8; times the scale 3."""
    made = quantizer([0.2], [0.75], scale=3.0)
    assert made(torch.zeros(1)).item() == pytest.approx(3 * 0.4)
    assert made.variance().item() == pytest.approx(9 * (0.8 - 0.16), rel=1e-5)
    made.mean().sum().backward()
    # dE/da = -S'(a) (2 S(b) - 1), dE/db = (1 - S(a)) 2 S'(b)
    assert made.zero_logits.grad.item() == pytest.approx(-0.2 * 0.8 * 0.5, rel=1e-5)
    assert made.sign_logits.grad.item() == pytest.approx(0.8 * 2 * 0.75 * 0.25, rel=1e-5)
    made = quantizer([0.2], [0.75], scale=3.0)
    made.variance().sum().backward()
    # dV/da = -S'(a) (1 - 2 * 0.8 * 0.5^2) and dV/db = -2 * 0.8^2 * 0.5 * 2 S'(b), both times 9; dV/d log scale = 2 V
    assert made.zero_logits.grad.item() == pytest.approx(9 * -0.16 * 0.6, rel=1e-4)
    assert made.sign_logits.grad.item() == pytest.approx(9 * -0.64 * 2 * 0.1875, rel=1e-4)
    assert made.log_scale.grad.item() == pytest.approx(2 * 9 * 0.64, rel=1e-4)


def test_a_binary_weight():
    made = BinaryLrnetQuantizer(weight=True, bits=(2,))
    made.sign_logits.data = torch.logit(torch.tensor([0.9, 0.3]))
    assert made.mean().tolist() == pytest.approx([0.8, -0.4])
    assert made.variance().tolist() == pytest.approx([1 - 0.64, 1 - 0.16], rel=1e-5)
    assert made.eval()(torch.zeros(2)).tolist() == [1.0, -1.0]


def test_probabilities_of_binary_weights_are_driven_to_certainty():
    """lambda p (1 - p) has the derivative lambda (1 - 2 p) p (1 - p) in the logit; ternary weights have no term."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False))
    compressor = bb.attach(model, torch.zeros(1, 2), bb.Spec(method="lrnet_binary"))
    made = compressor.attachment.quantizers["0.weight"]
    made.sign_logits.data = torch.logit(torch.tensor([[0.9, 0.3]]))
    term = compressor.method_loss(torch.tensor(1.0))
    assert term.item() == pytest.approx(1e-6 * (0.09 + 0.21), rel=1e-5)
    term.backward()
    expected = [1e-6 * -0.8 * 0.09, 1e-6 * 0.4 * 0.21]  # descent moves 0.9 up, and 0.3 down
    assert made.sign_logits.grad.tolist()[0] == pytest.approx(expected, rel=1e-4)
    assert quantizer([0.2], [0.75]).regularizer() is None


def test_evaluation_takes_the_likeliest_value():
    made = quantizer([0.5, 0.3, 0.4, 0.1], [0.6, 0.9, 0.2, 0.5], scale=2.0).eval()
    # 0.5 against 0.3; 0.3 against 0.63; 0.4 against 0.48; 0.1 against 0.45
    assert made(torch.zeros(4)).tolist() == [0.0, 2.0, -2.0, 2.0]


def test_a_weight_of_one_number_starts_with_its_sign():
    for made in (LrnetQuantizer(weight=True, bits=(2,)), BinaryLrnetQuantizer(weight=True, bits=(2,))):
        made.start(torch.tensor([[-0.3]]))
        assert made.eval()(torch.zeros(1, 1)).item() == pytest.approx(-0.3)
        assert made.mean().item() < -0.8


def test_the_start_from_a_trained_weight():
    made = LrnetQuantizer(weight=True, bits=(2,))
    weight = torch.tensor([0.5, -1.0, 0.1, 2.0, -1.6])
    made.start(weight)
    # The deviation is sqrt(7.82 / 4) = 1.39821: 0.3576, -0.7152, 0.07152, 1.4304, -1.1443.
    zero, positive = [0.62816, 0.30632, 0.88563, 0.05, 0.05], [0.95, 0.05, 0.81267, 0.95, 0.05]
    assert torch.sigmoid(made.zero_logits).tolist() == pytest.approx(zero, rel=1e-4)
    assert torch.sigmoid(made.sign_logits).tolist() == pytest.approx(positive, rel=1e-4)
    assert made.scale.item() == pytest.approx((1 + 2 + 1.6) / 3)  # of those above 0.7 times the mean of 1.04
    binary = BinaryLrnetQuantizer(weight=True, bits=(2,))
    binary.start(weight)
    assert torch.sigmoid(binary.sign_logits).tolist() == pytest.approx([0.6788, 0.1424, 0.53576, 0.95, 0.05], rel=1e-4)
    assert binary.scale.item() == pytest.approx(1.04)


def test_a_layer_draws_its_outputs_with_the_mean_and_variance_of_random_weights():
    """2,000 equal examples through one linear layer: m = sum E[w] x, v = sum Var[w] x^2."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1, bias=False))
    compressor = bb.attach(model, torch.zeros(1, 3), bb.Spec(method="lrnet", input_bits=32))
    compressor.calibrate([torch.ones(1, 3)])
    made = compressor.attachment.quantizers["0.weight"]
    made.zero_logits.data = torch.logit(torch.tensor([[0.2, 0.5, 0.4]]))
    made.sign_logits.data = torch.logit(torch.tensor([[0.75, 0.5, 0.9]]))
    made.log_scale.data.fill_(0.0)
    x = torch.tensor([1.0, 2.0, -1.0]).expand(20000, 3)
    drawn = model.train()(x)
    mean = 0.4 * 1 + 0.0 * 2 - 0.48
    variance = 0.64 + 0.5 * 4 + (0.6 - 0.48**2)
    assert drawn.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / 20000))
    assert drawn.var().item() == pytest.approx(variance, rel=0.05)  # without the local trick all rows would be equal
    drawn.square().mean().backward()  # E[y^2] = m^2 + v
    # The second weight has E[w] = 0, and dv/da = -S'(a) x^2 = -1: without a gradient of the variance it would be 0.
    assert made.zero_logits.grad[0, 1].item() == pytest.approx(-1.0, rel=0.05)
    assert made.log_scale.grad.item() == pytest.approx(2 * (mean**2 + variance), rel=0.05)
    assert model.eval()(x).unique().numel() == 1


def test_every_output_is_drawn_by_itself():
    """Channels and positions of a convolution on constant images: noise that they share would correlate them."""
    torch.manual_seed(0)
    compressor = bb.attach(
        nn.Sequential(nn.Conv2d(1, 2, 1, bias=False)), torch.zeros(1, 1, 1, 2), bb.Spec(method="lrnet", input_bits=32)
    )
    compressor.calibrate([torch.ones(1, 1, 1, 2)])
    drawn = compressor.model.train()(torch.ones(4000, 1, 1, 2)).flatten(1).T  # 2 channels at 2 positions
    correlations = torch.corrcoef(drawn) - torch.eye(4)
    assert correlations.abs().max().item() < 4 / 4000**0.5


def test_probabilities_learn_and_the_weights_they_started_from_do_not():
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="lrnet"))
    compressor.calibrate([IMAGES])
    compressor.model(IMAGES).sum().backward()
    made = compressor.attachment.quantizers["3.weight"]
    assert bool(made.zero_logits.grad.any())
    assert bool(made.sign_logits.grad.any())
    assert not compressor.model[3].weight.grad.any()


def trained():
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="lrnet", activation_bits=8))
    compressor.calibrate([IMAGES])
    made = compressor.attachment.quantizers["3.weight"]
    made.sign_logits.data.neg_()  # as if training had turned every weight round
    made.log_scale.data.add_(0.5)
    return compressor, made


def test_what_was_learned_stays_when_ranges_are_calibrated_again():
    compressor, made = trained()
    before = made.eval()(compressor.model[3].weight)
    compressor.calibrate([IMAGES])
    assert torch.equal(made(compressor.model[3].weight), before)


def test_a_network_that_is_detached_has_the_likeliest_weights():
    compressor, made = trained()
    learned = made.eval()(compressor.model[3].weight)
    made.train()
    weight = compressor.detach()[3].weight
    assert type(compressor.model[3]) is torch.nn.Conv2d
    assert torch.equal(weight, learned)
    assert weight.unique().numel() == 3


def test_weights_that_are_loaded_before_calibrating_are_those_that_it_starts_from():
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="lrnet"))
    with torch.no_grad():
        compressor.model[3].weight.neg_().mul_(3.0)
    compressor.calibrate([IMAGES])
    weight = compressor.model[3].weight
    expected = LrnetQuantizer(weight=True, bits=(2,))
    expected.start(weight)
    made = compressor.attachment.quantizers["3.weight"].eval()
    assert torch.equal(made(weight), expected.eval()(weight))


def test_nothing_is_written_where_nothing_was_calibrated_nor_where_a_layer_was_replaced():
    model = network()
    before = model[3].weight.detach().clone()
    compressor = bb.attach(model, IMAGES[:1], bb.Spec(method="lrnet"))
    assert torch.equal(compressor.detach()[3].weight, before)
    compressor, _ = trained()
    compressor.model[3] = torch.nn.Conv2d(6, 8, 3)
    weight = compressor.model[3].weight.detach().clone()
    assert torch.equal(compressor.detach()[3].weight, weight)
    assert compressor.model[7].weight.unique().numel() == 3


def test_a_computed_weight_that_cannot_be_written_is_named():
    model = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 4)))
    compressor = bb.attach(model, IMAGES[:1], bb.Spec(method="lrnet"))
    compressor.calibrate([IMAGES])
    with pytest.warns(UserWarning, match=r"1\.weight: computed from other parameters"):
        compressor.detach()


def test_a_stretched_grid_has_the_same_weights_or_none():
    """One step of 2 on grids whose steps are 1, 1.5 and 3 times as large: the nearest of those is 1, 1 and 0."""
    made = LrnetQuantizer(weight=True, bits=(2,))
    made.start(torch.tensor([[1.0], [-2.0], [3.0]]))
    made.zero_logits.data.fill_(-9.0)
    made.sign_logits.data.fill_(9.0)
    made.log_scale.data.fill_(math.log(2.0))
    stretch = torch.tensor([1.0, 1.5, 3.0])
    assert made.eval()(torch.zeros(3, 1), stretch).flatten().tolist() == pytest.approx([2.0, 3.0, 0.0])
    assert made.codes(torch.zeros(3, 1), stretch).flatten().tolist() == [1, 1, 0]
    made.sign_logits.data.fill_(0.0)  # -1 or 1, with a variance of 1
    made.zero_logits.data.fill_(-20.0)
    assert made.variance(stretch).flatten().tolist() == pytest.approx([4.0, 9.0, 0.0], rel=1e-4)


def test_a_layer_without_bits_draws_nothing():
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="lrnet"))
    compressor.calibrate([IMAGES])
    compressor.attachment.quantizers["9.weight"].fix(0)
    head = compressor.model.train()[9]
    assert torch.equal(head(torch.ones(2, 12)), head.bias.expand(2, 4))
