"""The grid: codes never leave it, for any range, and grid points are their own codes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesbits.functional import (
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
