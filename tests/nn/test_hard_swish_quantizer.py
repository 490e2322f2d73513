"""The range in front of a hard-swish starts at -3, and has a whole number of steps below zero."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from bayesbits.nn import GatedQuantizer
from bayesbits.nn.hard_swish_quantizer import HardSwishQuantizer
from bayesbits.posttraining.front_points import put_range, read_range


def quantizer(beta: float, alpha: float | None = -3.0) -> HardSwishQuantizer:
    made = HardSwishQuantizer()
    made.set_range(beta, alpha=alpha)
    made.fix(8)
    return made


@given(st.floats(0.05, 90.0))
@example(6.0)
@example(3.0)
@example(1e-6)
@example(20.18221565932357)
def test_three_is_a_whole_number_of_steps_and_the_range_at_most_one_of_them_longer(beta: float) -> None:
    made = quantizer(beta)
    low, high = made.code_bounds()
    assert high - low == 255
    assert made.step().item() * -low == pytest.approx(3.0, rel=1e-6)
    assert made.alpha.item() == pytest.approx(-3.0, rel=1e-6)
    grown = (made.beta.item() + 3) / (beta + 3)
    # A thousandth of a step too many below zero is rounding.
    assert 1 - 1.1e-3 / -low <= grown <= (-low + 1) / -low + 1e-4
    again = quantizer(made.beta.item())
    assert again.code_bounds() == (low, high)


def test_codes_are_those_of_the_range_that_it_has() -> None:
    made, x = quantizer(5.0), torch.linspace(-5, 7, 200)
    plain = GatedQuantizer(signed=True, bits=(8,), asymmetric=True)
    plain.set_range(made.beta.item(), alpha=-3.0)
    plain.fix(8)
    torch.testing.assert_close(made(x), plain(x), rtol=1e-6, atol=1e-6)
    assert made.codes(torch.tensor([-9.0, -3.0, 0.0])).tolist() == [-95, -95, 0]


def test_the_end_learns_as_that_of_any_range_and_the_start_does_not() -> None:
    made, x = quantizer(5.0), torch.linspace(-5, 20, 50)
    made(x).square().sum().backward()
    plain = GatedQuantizer(signed=True, bits=(8,), asymmetric=True)
    plain.set_range(made.beta.item(), alpha=-3.0)
    plain.fix(8)
    plain(x).square().sum().backward()
    got, expected = made.log_beta.grad / 5.0, plain.log_beta.grad / made.beta.item()  # both as gradients of beta
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=0)
    assert made.log_alpha.grad is None
    for parameters in (made.possible_range_parameters(), made.learned_range_parameters()):
        assert [parameter is made.log_beta for parameter in parameters] == [True]
    for mode in ("off", "learning", "fixed"):
        made.enter(mode, 8 if mode == "fixed" else None)
        assert not made.log_alpha.requires_grad


@pytest.mark.parametrize(
    ("beta", "alpha", "ends"),
    [
        (1.0, -0.5, (-0.5, 1.0)),  # twice as long as needed
        (200.0, -3.0, (-3.0, 200.0)),  # three steps below zero
        (200.0, -1.0, (-1.0, 200.0)),
        (20.0, -1.0, (-3.0, 20.182)),
        (2.0, None, (-0.002, 2.0)),  # nothing below zero
    ],
)
def test_ranges_that_would_waste_codes_stay_as_they_are(beta, alpha, ends) -> None:
    made = HardSwishQuantizer()
    made.set_range(beta, alpha=alpha, signed=False if alpha is None else None)
    assert made.kind == "asymmetric"
    assert (made.alpha.item(), made.beta.item()) == pytest.approx(ends, rel=1e-3)


def test_a_state_brings_the_same_range() -> None:
    for beta, alpha in ((4.4, -3.0), (1.0, -0.5)):
        made, other = quantizer(beta, alpha), HardSwishQuantizer()
        other.load_state_dict(made.state_dict())
        other.set_kind("unsigned")
        other.fix(8)
        assert (other.code_bounds(), other.step()) == (made.code_bounds(), made.step())
        stored = quantizer(7.0)
        put_range(stored, read_range(made))
        assert (stored.code_bounds(), stored.step()) == (made.code_bounds(), made.step())


def test_a_compiled_quantizer_computes_the_same() -> None:
    made, x = quantizer(5.0), torch.linspace(-5, 20, 50)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    gradients = []
    for one in (made, compiled):
        made.log_beta.grad = None
        one(x).square().sum().backward()
        gradients.append(made.log_beta.grad.clone())
    assert torch.equal(made(x), compiled(x))
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=0.0)  # sums in another order
