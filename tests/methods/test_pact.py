"""PACT by hand: its clipping level, its decay, and the weights of DoReFa-Net."""

import math

import pytest
import torch

import bayesbits as bb
from bayesbits.methods.pact import DorefaQuantizer, PactQuantizer
from tests.methods.quantizers import IMAGES, network


def test_forward_and_gradients_of_an_activation():
    """alpha = 3 at 2 bits: steps of 1, and values beyond 3 are 3."""
    made = PactQuantizer(weight=False, bits=(2,))
    made.set_range(3.0, signed=False)
    x = torch.tensor([-0.5, 0.4, 1.7, 3.2, 5.0], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([0.0, 0.0, 2.0, 3.0, 3.0])
    y.backward(torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0]))
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]
    assert made.level.grad.item() == pytest.approx(2.0 + 3.0)  # only what is clipped counts


def test_the_weights_of_dorefa_by_hand():
    """2 bits: c (2 round(3 r) / 3 - 1) with r = tanh(w) / (2 c) + 1/2."""
    w = [0.2, -0.9, 0.5]
    made, x = DorefaQuantizer(weight=True, bits=(2,)), torch.tensor(w, requires_grad=True)
    y = made(x)
    c = math.tanh(0.9)
    expected = [c * (2 * round(3 * (math.tanh(value) / (2 * c) + 0.5)) / 3 - 1) for value in w]
    assert y.tolist() == pytest.approx(expected)
    assert expected == pytest.approx([c / 3, -c, c / 3])
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx([1 - math.tanh(value) ** 2 for value in w], rel=1e-5)


def test_weights_have_four_values_at_two_bits_and_none_is_zero():
    emitted = DorefaQuantizer(weight=True, bits=(2,))(torch.randn(1000)).unique()
    assert emitted.numel() == 4
    assert bool((emitted != 0).all())


def test_the_levels_decay_in_the_loss():
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="pact"))
    compressor.calibrate([IMAGES])
    levels = [q.level for q in compressor.attachment.quantizers.values() if isinstance(q, PactQuantizer)]
    assert len(levels) == 3
    term = compressor.method_loss(torch.tensor(1.0))
    assert term.item() == pytest.approx(2e-4 * sum(level.item() ** 2 for level in levels))
    term.backward()
    assert levels[0].grad.item() == pytest.approx(2 * 2e-4 * levels[0].item())


def test_a_level_that_nothing_reaches_shrinks_by_its_decay_alone():
    """Without the decay the level of a tensor that is never clipped would stay where it was."""
    torch.manual_seed(0)
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="pact"))
    compressor.calibrate([IMAGES])
    quantizer = compressor.attachment.quantizers["9.input"]
    quantizer.set_range(1000.0, signed=False)
    config = bb.SearchConfig(epochs=1, weights={"lr": 0.0}, ranges={"lr": 1.0})
    bb.search(
        compressor, [(IMAGES, torch.zeros(24, dtype=torch.long))], torch.nn.functional.cross_entropy, config,
        progress=False,
    )  # fmt: skip
    assert quantizer.level.item() == pytest.approx(999.0)


def test_values_below_zero_are_clipped_at_the_other_end():
    made = PactQuantizer(weight=False, bits=(2,))
    made.set_range(1.5, signed=True)
    assert made(torch.tensor([-9.0, -0.6, 0.4])).tolist() == pytest.approx([-1.0, -1.0, 0.0])
    made(torch.tensor([-9.0, 0.4, 7.0, 8.0])).backward(torch.tensor([5.0, 1.0, 1.0, 1.0]))
    assert made.level.grad.item() == pytest.approx(1 + 1 - 5)


def test_a_level_below_zero_is_its_magnitude():
    made = PactQuantizer(weight=False, bits=(2,))
    made.level.data.fill_(-3.0)
    made.set_kind("unsigned")
    assert made(torch.tensor([9.0, 1.2])).tolist() == pytest.approx([3.0, 1.0])


def test_biases_beside_weights_without_codes_are_not_rounded():
    """The input has 4 bits, and so have the weights, but there is no integer accumulator."""
    steps = {}
    for name in ("pact", "lsq"):
        compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method=name, weight_bits=4, activation_bits=4))
        compressor.calibrate([IMAGES])
        steps[name] = compressor.model[7].bias_step()
    assert steps["pact"] is None
    assert steps["lsq"] is not None
