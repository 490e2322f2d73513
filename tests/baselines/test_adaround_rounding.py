"""The mathematics of adaptive rounding, by hand."""

import math

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines.adaround_rounding import (
    AdaRoundConfig,
    RoundingGrid,
    learned_step,
    logits_of,
    rectified_sigmoid,
    regularizer,
    soft_weight,
    where_between,
)


def test_the_rectified_sigmoid_by_hand():
    assert rectified_sigmoid(torch.zeros(1)).item() == pytest.approx(0.5)
    assert rectified_sigmoid(torch.tensor([math.log(3)])).item() == pytest.approx(1.2 * 0.75 - 0.1)
    assert rectified_sigmoid(torch.tensor([-4.0, 4.0])).tolist() == [0.0, 1.0]  # reached, not only approached


def test_logits_start_at_the_fraction():
    fractions = torch.tensor([0.0, 0.1, 0.5, 0.9, 1 - 1e-6])
    torch.testing.assert_close(rectified_sigmoid(logits_of(fractions)), fractions)


def test_the_regularizer_by_hand():
    logits = logits_of(torch.tensor([0.0, 0.75, 0.5]))
    assert regularizer(logits, 2.0).item() == pytest.approx(0 + (1 - 0.25) + 1)
    assert regularizer(logits, 20.0).item() == pytest.approx(0 + (1 - 0.5**20) + 1)
    # d/dV of 1 - (2h - 1)^2 is -4 (2h - 1) h', and h' = 1.2 sigmoid (1 - sigmoid).
    logits = torch.tensor([math.log(3)], requires_grad=True)
    regularizer(logits, 2.0).backward()
    assert logits.grad.item() == pytest.approx(-4 * (2 * 0.8 - 1) * 1.2 * 0.75 * 0.25, rel=1e-5)


def grid_of(layer: nn.Linear, beta, per_channel: bool = False, bits: int = 2, norm: nn.BatchNorm1d | None = None):
    model = nn.Sequential(*[part for part in (layer, norm) if part is not None]).eval()
    spec = bb.Spec(input_bits=32, per_channel_weights=per_channel, prune=False)
    compressor = bb.attach(model, torch.randn(4, layer.in_features), spec)
    compressor.attachment.quantizers["0.weight"].fix(bits)
    compressor.attachment.quantizers["0.weight"].set_range(beta)
    return RoundingGrid.of(layer), layer


def linear(rows: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def test_codes_below_and_above_by_hand():
    # 2 bits in [-3, 3]: the step is 2, and codes are -1, 0, 1; narrow, as 3 / 2 = 1.5 would round to 2.
    grid, _ = grid_of(linear([[0.6, -0.6, 2.6, -2.6, 9.0, -9.0]]), 3.0)
    assert grid.step.item() == pytest.approx(2.0)
    assert grid.below.tolist() == [[0, -1, 1, -2, 1, -2]]
    torch.testing.assert_close(grid.fraction[0, :4], torch.tensor([0.3, 0.7, 0.3, 0.7]), rtol=1e-5, atol=1e-5)
    assert grid.codes(torch.zeros(1, 6)).tolist() == [[0, -1, 1, -1, 1, -1]]
    assert grid.codes(torch.ones(1, 6)).tolist() == [[1, 0, 1, -1, 1, -1]]
    torch.testing.assert_close(grid.weight(torch.ones(1, 6)), torch.tensor([[2.0, 0, 2, -2, 2, -2]]))


def test_every_row_has_its_own_step():
    grid, _ = grid_of(linear([[0.6, 2.6], [0.6, 2.6]]), [3.0, 6.0], per_channel=True)
    assert grid.step.flatten().tolist() == pytest.approx([2.0, 4.0])
    assert grid.below.tolist() == [[0, 1], [0, 0]]


def test_a_batch_norm_stretches_the_grid():
    norm = nn.BatchNorm1d(2, eps=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([-4.0, 0.0]))
        norm.running_var.fill_(4.0)
    grid, layer = grid_of(linear([[0.3, -1.3], [0.3, -1.3]]), 3.0, norm=norm)
    # f = -2, so that the steps of 2 are steps of 1 for the weight; a channel with f = 0 is rounded as if f were 1.
    assert grid.step.flatten().tolist() == pytest.approx([1.0, 2.0])
    assert grid.below.tolist() == [[0, -2], [0, -1]]
    torch.testing.assert_close(grid.weight(torch.zeros(2, 2)), torch.tensor([[0.0, -1.0], [0.0, -2.0]]))
    nearest = (grid.fraction >= 0.5).float()
    torch.testing.assert_close(grid.weight(nearest), layer.effective_weight().detach())


def test_the_schedule_of_the_regularizer():
    config = AdaRoundConfig(steps=101, warm_up=0.0)
    assert [config.regularization(step)[1] for step in (0, 50, 100)] == pytest.approx([20.0, 11.0, 2.0])
    assert AdaRoundConfig(steps=100).regularization(19) == (0.0, 20.0)
    assert AdaRoundConfig(steps=100).regularization(20) == pytest.approx((30.0, 20.0))


def test_options_that_are_out_of_range_are_named():
    for wrong in (
        {"steps": 0}, {"batch_size": 1.5}, {"lr": 0.0}, {"range_lr": -1.0}, {"strength": -1.0}, {"warm_up": 1.0},
        {"exponents": (2.0, 20.0)}, {"max_gibibytes": 0.0}, {"asymmetric": 1}, {"after_activation": None},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"AdaRoundConfig.{next(iter(wrong))}"):
            AdaRoundConfig(**wrong)


@pytest.mark.parametrize("exponent", [2.0, 7.5, 20.0])
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_the_soft_weight_has_the_gradient_of_its_parts(exponent, strength):
    torch.manual_seed(0)
    below = torch.tensor([-7.0, -3.0, 0.0, 6.0, 7.0]).repeat(20, 1)
    grid = RoundingGrid(below, torch.zeros_like(below), torch.rand(20, 1) + 0.5, (-7, 7))
    logits = (3 * torch.randn(20, 5)).requires_grad_()
    aim = torch.randn(20, 5)
    ours = soft_weight(grid, logits, torch.tensor(strength), torch.tensor(exponent))
    torch.testing.assert_close(ours, grid.weight(rectified_sigmoid(logits)))
    (found,) = torch.autograd.grad((ours - aim).square().sum(), [logits])
    loss = (grid.weight(rectified_sigmoid(logits)) - aim).square().sum() + strength * regularizer(logits, exponent)
    inside = (rectified_sigmoid(logits) > 0) & (rectified_sigmoid(logits) < 1)
    assert inside.any()
    (wanted,) = torch.autograd.grad(loss, [logits])
    wanted = torch.where(below < 7, wanted, torch.autograd.grad(strength * regularizer(logits, exponent), [logits])[0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_pass_between_two_numbers_and_not_at_them(dtype):
    finite = torch.finfo(dtype)
    x = torch.tensor([-1.0, -finite.eps, 0.0, finite.eps, 0.5, 1 - finite.eps, 1.0, 1 + finite.eps, 2.0], dtype=dtype)
    gradient = torch.arange(1, 10, dtype=dtype)
    inclusive = where_between(gradient, x, -finite.tiny, 1 + finite.eps)
    assert torch.equal(inclusive, torch.where((x >= 0) & (x <= 1), gradient, 0))
    codes = torch.tensor([-1e6, 6.0, 7.0], dtype=dtype)
    assert where_between(torch.ones_like(codes), codes, -math.inf, 7).tolist() == [1.0, 1.0, 0.0]


def test_a_weight_whose_code_cannot_rise_gets_no_gradient_of_the_error():
    grid = RoundingGrid(torch.tensor([6.0, 7.0]), torch.tensor([0.5, 0.5]), torch.tensor(2.0), (-7, 7))
    logits = grid.first_logits().requires_grad_()
    soft_weight(grid, logits, torch.tensor(0.0), torch.tensor(2.0)).sum().backward()
    assert logits.grad[0].item() == pytest.approx(2.0 * 1.2 * 0.25)
    assert logits.grad[1].item() == 0.0


def test_every_group_of_inputs_has_its_own_step():
    torch.manual_seed(0)
    model = nn.Linear(40, 3).eval()
    with torch.no_grad():
        model.weight[:, 16:32] *= 10
    compressor = bb.attach(model, torch.zeros(2, 40), bb.Spec(activations="float", prune=False, group_size=16))
    compressor.fix(bb.Plan({"weight": 4, ".input": 32}))
    grid = RoundingGrid.of(model)
    assert grid.step.shape == (3, 40)
    assert bool((grid.step[:, 16:32] > 5 * grid.step[:, :16]).all())
    assert grid.step.unique().numel() == 9
    nearest = grid.codes((grid.fraction > 0.5).float())
    assert torch.equal(nearest.int(), model.folded_codes().int())


@pytest.mark.parametrize("shape", [(), (1, 1), (20, 1)])
def test_the_soft_weight_has_the_gradient_of_its_step(shape):
    torch.manual_seed(0)
    below = torch.tensor([-9.0, -3.0, 0.0, 6.0, 7.0]).repeat(20, 1)  # the first and the last are clipped
    grid = RoundingGrid(below, torch.zeros_like(below), torch.ones(shape), (-7, 7))
    logits, aim = 3 * torch.randn(20, 5), torch.randn(20, 5)
    step = (torch.rand(shape) + 0.5).requires_grad_()
    ours = soft_weight(grid, logits.clone().requires_grad_(), torch.tensor(0.3), torch.tensor(2.0), step)
    (found,) = torch.autograd.grad((ours - aim).square().sum(), [step])
    wanted = step * torch.clamp(below + rectified_sigmoid(logits), -7, 7)
    torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(found, torch.autograd.grad((wanted - aim).square().sum(), [step])[0])


def test_a_learned_step_follows_the_range_and_keeps_the_stretch_of_the_batch_norm():
    for beta, factors in ((3.0, (2.0, 2.0)), ([3.0, 5.0], (2.0, 3.0))):
        norm = nn.BatchNorm1d(2, eps=0.0)
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([-4.0, 2.0]))
            norm.running_var.fill_(4.0)
        grid, layer = grid_of(linear([[0.3, -1.3], [0.3, -1.3]]), beta, not isinstance(beta, float), norm=norm)
        step, quantizer = learned_step(grid, layer), layer.parts.weight
        torch.testing.assert_close(step(), grid.step)
        with torch.no_grad():
            quantizer.log_beta.add_(torch.tensor(factors[: quantizer.log_beta.numel()]).log().squeeze())
        torch.testing.assert_close(step(), grid.step * torch.tensor(factors)[:, None])
        torch.testing.assert_close(step(), RoundingGrid.of(layer).step)
        step().sum().backward()  # d step / d log beta is the step
        torch.testing.assert_close(quantizer.log_beta.grad.sum(), step().sum().detach())
