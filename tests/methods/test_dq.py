"""DQ by hand: step and range learn, the width follows, and the penalty makes it small."""

import math
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import bayesbits as bb
from bayesbits.methods.dq import DqQuantizer, RestrictedDqQuantizer
from tests.methods.quantizers import IMAGES, LABELS, network


def quantizer(weight, step, end, made=DqQuantizer):
    one = made(weight=weight, bits=(2, 4, 8, 16, 32))
    one.set_kind("symmetric" if weight else "unsigned")
    with torch.no_grad():
        one.log2_range.fill_(math.log2(end))
        one.log2_step.fill_(math.log2(step))
    return one


def test_forward_and_gradients_of_a_weight():
    """d = 0.5, q_max = 1.5: codes -3..3."""
    made, x = quantizer(True, 0.5, 1.5), torch.tensor([0.3, -0.9, 4.0, -4.5], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([0.5, -1.0, 1.5, -1.5])
    y.backward(torch.tensor([1.0, 1.0, 1.0, 2.0]))
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    # dQ/dd = (Q(x) - x) / d inside, here 0.4 and -0.2; the parameter is log2 d: times d ln 2
    assert made.log2_step.grad.item() == pytest.approx((0.4 - 0.2) * 0.5 * math.log(2), rel=1e-4)
    # dQ/dq_max = sign(x) beyond: 1 - 2; times q_max ln 2
    assert made.log2_range.grad.item() == pytest.approx((1 - 2) * 1.5 * math.log(2), rel=1e-4)


def test_forward_of_an_activation():
    made = quantizer(False, 0.5, 1.5)
    x = torch.tensor([-1.0, 0.3, 0.9, 5.0], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5])
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert made.log2_step.grad.item() == pytest.approx((0.4 + 0.2) * 0.5 * math.log(2), rel=1e-4)
    assert made.log2_range.grad.item() == pytest.approx(1.5 * math.log(2), rel=1e-4)


def test_a_range_that_is_no_whole_number_of_steps_ends_on_the_grid():
    """d = 0.5 and q_max = 1.7: what is beyond is 1.5, and 1.6 is inside and rounds to it."""
    assert quantizer(True, 0.5, 1.7)(torch.tensor([9.0, -9.0, 1.6])).tolist() == pytest.approx([1.5, -1.5, 1.5])


@pytest.mark.parametrize(
    ("weight", "ratio", "bits", "restricted"),
    [(True, 1, 2, 2), (True, 3, 3, 4), (True, 7, 4, 4), (True, 8, 5, 8), (True, 127, 8, 8),
     (False, 3, 2, 2), (False, 15, 4, 4), (False, 16, 5, 8), (False, 255, 8, 8)],
)  # fmt: skip
def test_the_width_follows_from_range_and_step(weight, ratio, bits, restricted):
    """b = ceil(log2(q_max / d + 1) + 1) signed, and one less unsigned."""
    assert quantizer(weight, 0.25, 0.25 * ratio).effective_bits() == bits
    assert quantizer(weight, 0.25, 0.25 * ratio).expected_bits().item() == bits
    assert quantizer(weight, 0.25, 0.25 * ratio, RestrictedDqQuantizer).effective_bits() == restricted


def test_widths_start_at_8_bits_and_stay_between_2_and_the_widest():
    made = DqQuantizer(weight=True, bits=(2, 4, 8))
    made.set_range(3.0, signed=True)
    assert made.effective_bits() == 8
    with torch.no_grad():
        made.log2_step.sub_(0.01)
    assert (made.effective_bits(), made.expected_bits().item()) == (8, 8)  # the widest; not 9
    with torch.no_grad():
        made.log2_step.fill_(20.0)
    assert made.effective_bits() == 2
    last = 3.0 * 254 / 255  # the last code of 8 bits: the range ends half a step beyond
    assert made(torch.tensor([-9.0, 1.4, 1.6, 9.0])).tolist() == pytest.approx([-last, 0.0, last, last])


@pytest.mark.parametrize("weight", [True, False])
def test_every_range_starts_at_8_bits(weight):
    """The step is 1 / 127 or 1 / 255 of the end up to rounding, which is not to give 9 bits."""
    made = DqQuantizer(weight=weight, bits=(2, 4, 8, 16, 32))
    for end in torch.linspace(0.01, 30, 200).tolist():
        made.set_range(end, signed=weight)
        assert made.effective_bits() == 8


def test_the_last_code_of_a_calibrated_weight_is_its_largest_magnitude():
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="dq", rules={"7.weight": bb.Rule(2)}))
    compressor.calibrate([IMAGES], "minmax")
    weight = compressor.model[7].weight
    emitted = compressor.attachment.quantizers["7.weight"](weight)
    assert emitted.max().item() == pytest.approx(weight.abs().max().item(), rel=1e-5)


VALUES = torch.linspace(-3.0, 3.0, 601) + 0.0037  # no ties


@pytest.mark.parametrize("made", [DqQuantizer, RestrictedDqQuantizer])
@pytest.mark.parametrize(
    ("weight", "ratio"), [(True, 2.2), (True, 3.6), (True, 1.4), (False, 3.3), (False, 6.6), (False, 17.2)]
)
def test_the_width_that_was_learned_is_fixed_with_the_grid_that_was_learned(made, weight, ratio):
    """q_max is no power of two less one in steps: the codes end at it, and not where the width does."""
    learned = quantizer(weight, 0.3, 0.3 * ratio, made)
    bits, before, bounds = learned.effective_bits(), learned(VALUES), learned.code_bounds()
    assert bounds == ((-round(ratio), round(ratio)) if weight else (0, round(ratio)))
    learned.fix()
    assert (learned.effective_bits(), learned.code_bounds(), learned.step().item()) == (
        bits,
        bounds,
        pytest.approx(0.3),
    )
    torch.testing.assert_close(learned(VALUES), before)
    torch.testing.assert_close(learned.codes(VALUES) * learned.step(), before)
    other = made(weight=weight, bits=(2, 4, 8, 16, 32))
    other.load_state_dict(learned.state_dict())
    torch.testing.assert_close(other(VALUES), before)
    learned.log2_range.data.add_(1.0)  # as fine-tuning may: the grid is stretched, and stays so when it learns again
    torch.testing.assert_close(learned(2 * VALUES), 2 * before)
    learned.learn()
    torch.testing.assert_close(learned(2 * VALUES), 2 * before)


def test_another_width_keeps_the_range_and_takes_the_whole_grid():
    made = quantizer(True, 0.4, 1.4)  # q_max is rounded to 4 steps
    made.fix(8)
    assert made.step().item() == pytest.approx(1.6 / 127)
    assert made.code_bounds() == (-127, 127)
    made.fix(4)  # the width that was learned, and its grid
    assert made.code_bounds() == (-4, 4)
    assert made.step().item() == pytest.approx(0.4)
    made.set_range(1.5, signed=True)  # calibrated again: whole
    assert made.code_bounds() == (-7, 7)
    assert made.step().item() == pytest.approx(0.2)


def test_what_is_learned_after_a_width_was_fixed_stays_learned():
    made = quantizer(True, 0.4, 1.6)
    made.fix()
    made.learn()
    with torch.no_grad():
        made.log2_step.sub_(3)
    for again in (made.turn_off, made.learn, made.learn):
        again()
    assert (made.effective_bits(), made.code_bounds()) == (7, (-32, 32))
    assert made.get_extra_state().tolist()[3:] == []


@pytest.mark.parametrize(("steps", "bits", "last"), [(40_000, 16, 40_000), (70_000, 17, None), (140_000, 18, None)])
def test_above_16_bits_the_whole_grid_is_taken(steps, bits, last):
    made = quantizer(False, 1.4 / steps, 1.4)
    assert made.effective_bits() == bits
    made.fix()
    assert made.last_code == last
    assert made(torch.tensor([9.0, 0.31])).tolist() == pytest.approx([1.4, 0.31], rel=1e-4)


def test_a_logarithm_that_is_inexact_gives_no_further_bit():
    exact = torch.log2
    with patch("torch.log2", lambda x: exact(x) * (1 + 2e-7)):
        assert quantizer(True, 0.25, 0.25 * 7).effective_bits() == 4
        assert quantizer(False, 0.25, 0.25 * 255).effective_bits() == 8


def test_an_early_end_is_shown():
    made = quantizer(True, 0.4, 1.6)
    made.fix()
    assert "fixed 4 bits to code 4 of" in repr(made)


def test_what_is_beyond_a_fixed_range_has_no_gradient():
    """d = 0.2 and the last code is 7: 1.45 would round to it, and is beyond q_max = 1.4."""
    made, x = quantizer(True, 0.2, 1.4), torch.tensor([1.35, 1.45], requires_grad=True)
    made.fix(4)
    made(x).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["dq", "dq_restricted"])
def test_a_network_with_grids_that_end_early_is_deployed_and_proven(name, tmp_path):
    """Weights and activations have codes that their widths do not use up, in all that is stored and written."""
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method=name, bits=(2, 4, 8)))
    compressor.calibrate([IMAGES])
    with torch.no_grad():
        for tensor, one in compressor.attachment.quantizers.items():
            if isinstance(one, DqQuantizer):
                one.log2_step.copy_(one.log2_range - math.log2(5.3 if tensor.endswith("weight") else 10.4))
    before = compressor.model.eval()(IMAGES)
    compressor.fix()
    small = bb.deploy(compressor)
    grids = [small.integer.grid(name) for name in ("3.input", "7.input")]
    assert [(grid.low, grid.high) for grid in grids] == [(0, 10), (0, 10)]
    assert max(small.integer.codes("3").unique().tolist()) == 5
    # Biases of integer layers are rounded from here on, which moves a few codes by one.
    assert (small(IMAGES) - before).abs().mean() < 0.05 * before.abs().mean()
    torch.testing.assert_close(small(IMAGES), compressor.model.eval()(IMAGES))
    bb.save(small, tmp_path / "small")
    torch.testing.assert_close(bb.load(tmp_path / "small")(IMAGES), small(IMAGES))
    for form in ("fast", "compact", "qdq"):
        bb.export_onnx(small, IMAGES[:1], tmp_path / f"{form}.onnx", form)
        assert "0 elsewhere" in str(bb.verify(compressor, small, tmp_path / f"{form}.onnx", IMAGES))


def test_a_computed_weight_with_a_grid_that_ends_early_is_deployed_and_proven(tmp_path):
    """Its numbers cannot be written onto the grid before: what is beyond the last code is there in the file."""
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(16, 24)), nn.ReLU(), nn.Linear(24, 4))
    compressor = bb.attach(model, x[:1], bb.Spec(method="dq", bits=(2, 4, 8)))
    compressor.calibrate([x])
    one = compressor.attachment.quantizers["0.weight"]
    with torch.no_grad():
        one.log2_range.sub_(1)
        one.log2_step.copy_(one.log2_range - math.log2(5.3))
    compressor.fix()
    small = bb.deploy(compressor)
    assert small.integer.codes("0").abs().max() == 5
    bb.export_onnx(small, x[:1], tmp_path / "fast.onnx", "fast")
    assert "0 elsewhere" in str(bb.verify(compressor, small, tmp_path / "fast.onnx", x))


def test_the_end_of_the_range_is_inside():
    """q_max = 1.5 is 3 steps of 0.5: d Q / d x = 1 there, and 0 for what is larger."""
    made, x = quantizer(True, 0.5, 1.5), torch.tensor([1.5, -1.5, 1.6], requires_grad=True)
    made(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0]


def test_the_gradient_of_the_width_is_that_of_its_logarithm():
    """b = log2(q_max / d + 1) + 1 with q_max / d = 3: db / d log2 d = -3 / 4, and +3 / 4 for q_max."""
    made = quantizer(True, 0.5, 1.5)
    made.expected_bits().backward()
    assert made.log2_step.grad.item() == pytest.approx(-0.75, rel=1e-4)
    assert made.log2_range.grad.item() == pytest.approx(0.75, rel=1e-4)


def searched(mu):
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="dq"))
    config = bb.SearchConfig(epochs=6, mu=mu, gates={"lr": 0.3})
    torch.manual_seed(0)
    return compressor.cost(
        bb.search(compressor, [(IMAGES, LABELS)] * 3, F.cross_entropy, config, progress=False)
    ).relative_bops


def test_the_penalty_makes_the_network_small():
    """Without it the widths stay near the 8 bits that they start with."""
    assert searched(mu=10.0) < 0.5 * searched(mu=0.0)
