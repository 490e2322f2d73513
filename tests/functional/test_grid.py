"""The grid: codes never leave it, for any range, and grid points are their own codes."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bayesbits.functional import (
    asymmetric_code_bounds,
    code_bounds,
    dequantize,
    gated_quantize,
    grid,
    quantize_to_codes,
    step_size,
)

ranges = st.floats(2.0**-99, 2.0**99, width=32)


values = st.floats(width=32, allow_nan=False)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_the_end_of_the_range_has_the_last_code_for_every_float32_mantissa(bits, signed):
    beta = (torch.arange(2**23, dtype=torch.int32) + (127 << 23)).view(torch.float32)
    codes = torch.round(grid.clip(beta, beta, signed) / step_size(beta, bits, signed))
    assert (codes == code_bounds(bits, signed)[1]).all()


@given(value=values, beta=ranges, bits=st.integers(2, 24), signed=st.booleans())
def test_codes_never_leave_the_grid_and_are_the_nearest(value, beta, bits, signed):
    x, end = torch.tensor(value), torch.tensor(beta)
    code = quantize_to_codes(x, end, bits=bits, signed=signed).item()
    low, high = code_bounds(bits, signed)
    assert low <= code <= high
    clipped = min(max(value, -beta if signed else 0.0), beta)
    step = (2 * beta if signed else beta) / (2**bits - 1)
    assert abs(code * step - clipped) <= step * (0.5 + 2.0 ** (bits - 22))


@given(code=st.integers(-127, 127), beta=ranges)
def test_a_grid_point_is_its_own_code(code, beta):
    end = torch.tensor(beta)
    point = dequantize(torch.tensor(code), end, bits=8, signed=True)
    assert quantize_to_codes(point, end, bits=8, signed=True) == code


@given(value=values, beta=ranges, open_gates=st.integers(1, 4), signed=st.booleans())
def test_binary_gates_give_the_direct_codes(value, beta, open_gates, signed):
    bits = (2, 4, 8, 16, 32)
    gates = torch.tensor([1.0] * open_gates + [0.0] * (5 - open_gates))
    x, end = torch.tensor([value]), torch.tensor(beta)
    y = gated_quantize(x, end, gates, signed=signed, bits=bits)
    width = bits[open_gates - 1]
    assert torch.equal(
        y, dequantize(quantize_to_codes(x, end, bits=width, signed=signed), end, bits=width, signed=signed)
    )


@given(
    value=st.floats(-5, 5, width=32),
    beta=st.floats(0.125, 4, width=32),
    gates=st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_the_mixture_stays_inside_of_the_range(value, beta, gates):
    y = gated_quantize(torch.tensor([value]), beta, gates, signed=True)
    assert y.abs().item() <= beta * (1 + 1e-6)


@pytest.mark.parametrize(("bits", "signed", "bounds"), [(2, True, (-1, 1)), (4, True, (-7, 7)), (8, False, (0, 255))])
def test_code_bounds(bits, signed, bounds):
    assert code_bounds(bits, signed) == bounds


def test_codes_of_32_bits_exist_in_float64_only():
    with pytest.raises(ValueError, match="cannot hold a grid of 32 bits"):
        quantize_to_codes(torch.ones(1), torch.tensor(1.0), bits=32, signed=False)
    codes = quantize_to_codes(torch.ones(1, dtype=torch.float64), torch.tensor(1.0), bits=32, signed=False)
    assert codes.item() == pytest.approx(2**32 - 1, rel=2e-7)  # the edge of the range is clipped by 1e-7


def test_float32_holds_grids_of_up_to_24_bits_and_float64_all():
    assert [bits for bits in range(2, 33) if not grid.has_grid(bits, torch.float32)] == list(range(25, 33))
    assert all(grid.has_grid(bits, torch.float64) for bits in range(2, 33))


def test_codes_of_a_bias_are_whole_steps_rounded_in_float64():
    bias, step = torch.tensor([1.0, -0.26, 0.25, 3e7]), torch.tensor([0.1, 0.1, 0.1, 0.7])
    codes = grid.bias_codes(bias, step)
    assert codes.dtype == torch.float64
    assert codes.tolist() == [round(b / s) for b, s in zip(bias.tolist(), step.tolist(), strict=True)]


ENDS = st.floats(0.0, 1e6, width=32, allow_subnormal=False)


@settings(max_examples=300, deadline=None)
@given(lower=ENDS, upper=ENDS, bits=st.integers(2, 16), values=st.lists(st.floats(-2e6, 2e6, width=32), min_size=1))
def test_asymmetric_codes_have_zero_among_them_and_need_no_clipping_of_values(lower, upper, bits, values):
    """So a runtime that divides, rounds and limits the codes gets the same codes."""
    assume(lower + upper > 1e-6)
    alpha, beta = torch.tensor(-lower), torch.tensor(upper)
    low, high = asymmetric_code_bounds(alpha, beta, bits)
    assert low <= 0 <= high
    assert 2**bits - 2 <= high - low <= 2**bits - 1
    x = torch.tensor([*values, 0.0, -lower, upper, 2 * upper, -2 * lower])
    codes = quantize_to_codes(x, beta, bits=bits, signed=True, alpha=alpha)
    step = step_size(beta, bits, True, alpha)
    assert torch.equal(codes, torch.clamp(torch.round(x / step), low, high).int())
    assert codes[len(values)] == 0
    assert codes.min() == low
    assert codes.max() == high


def test_asymmetric_codes_by_hand():
    alpha, beta = torch.tensor(-0.2), torch.tensor(1.3)
    assert step_size(beta, 4, True, alpha).item() == pytest.approx(0.1)
    x = torch.tensor([-9.0, -0.2, -0.12, 0.0, 0.26, 1.3, 9.0])
    codes = quantize_to_codes(x, beta, bits=4, signed=True, alpha=alpha)
    assert codes.tolist() == [-2, -2, -1, 0, 3, 13, 13]
    assert dequantize(codes, beta, bits=4, signed=True, alpha=alpha)[4].item() == pytest.approx(0.3)
    # Both ends lie halfway between two codes, and would be rounded away from each other: the largest is left out.
    assert asymmetric_code_bounds(torch.tensor(-1.5), torch.tensor(1.5), 2) == (-2, 1)
    assert asymmetric_code_bounds(torch.tensor(-0.5), torch.tensor(2.5), 2) == (0, 2)  # here towards each other
    # A lower end of zero is an unsigned range, and an upper end of zero has codes below zero alone.
    assert asymmetric_code_bounds(torch.tensor(0.0), torch.tensor(1.0), 8) == (0, 255)
    assert asymmetric_code_bounds(torch.tensor(-1.0), torch.tensor(0.0), 2) == (-3, 0)
