"""Every function that the kernels share against torch's operations and the definition of the grid, bit for bit."""

import pytest
import torch

from bayesbits.functional import grid

arithmetic = pytest.importorskip("bayesbits.functional.triton_arithmetic")
launch = pytest.importorskip("bayesbits.functional.triton_launch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 1024


@triton.jit
def _quotient_kernel(x_pointer, step_pointer, y_pointer, fused: tl.constexpr, size: tl.constexpr):
    places = tl.arange(0, size)
    step = tl.load(step_pointer)
    tl.store(y_pointer + places, arithmetic._quotient(tl.load(x_pointer + places), step, fused))


@triton.jit
def _round_kernel(x_pointer, y_pointer, levels: tl.constexpr, size: tl.constexpr):
    places = tl.arange(0, size)
    tl.store(y_pointer + places, arithmetic._round(tl.load(x_pointer + places), levels))


@triton.jit
def _coarser_kernel(x_pointer, y_pointer, ratio: tl.constexpr, size: tl.constexpr):
    places = tl.arange(0, size)
    tl.store(y_pointer + places, arithmetic._coarser(tl.load(x_pointer + places), ratio))


@triton.jit
def _clip_kernel(x_pointer, beta_pointer, y_pointer, signed: tl.constexpr, fused: tl.constexpr, size: tl.constexpr):
    places = tl.arange(0, size)
    beta = tl.load(beta_pointer)
    tl.store(y_pointer + places, arithmetic._clip(tl.load(x_pointer + places), beta, signed, fused))


@triton.jit
def _bounds_kernel(
    alpha_pointer, beta_pointer, low_pointer, high_pointer,
    levels: tl.constexpr, grids: tl.constexpr, fused: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    alpha, beta = tl.load(alpha_pointer + row), tl.load(beta_pointer + row)
    steps = arithmetic._steps(beta - alpha, levels, grids, False)
    lowest = arithmetic._lowest_codes(alpha, steps, levels, grids, fused)
    highest = arithmetic._highest_codes(beta, lowest, steps, levels, grids, fused)
    for i in tl.static_range(grids):
        tl.store(low_pointer + row * grids + i, lowest[i])
        tl.store(high_pointer + row * grids + i, highest[i])


@triton.jit
def _on_grid_kernel(x_pointer, y_pointer, bounded: tl.constexpr, fused: tl.constexpr, size: tl.constexpr):
    places = tl.arange(0, size)
    lowest = ()
    highest = ()
    if bounded:
        lowest = (-1.0, -3.0)
        highest = (2.0, 12.0)
    tl.store(y_pointer + places, arithmetic._on_grid(tl.load(x_pointer + places), lowest, highest, 1, fused))


@triton.jit
def _open_kernel(gates_pointer, y_pointer, first: tl.constexpr, last: tl.constexpr):
    tl.store(y_pointer, arithmetic._open(gates_pointer, first, last))


def uniform(low, high, seed=0):
    return (torch.rand(SIZE, generator=torch.Generator().manual_seed(seed)) * (high - low) + low).to(DEVICE)


@pytest.mark.parametrize("step", [1 / 3, 0.7 / 127, 2.6 / 65535])
def test_quotients_are_correctly_rounded(step):
    x, step = uniform(-1, 1), torch.tensor([step], device=DEVICE)
    y = torch.empty_like(x)
    _quotient_kernel[(1,)](x, step, y, launch._FUSED, SIZE)
    assert torch.equal(y, x / step)


@pytest.mark.parametrize("bits", [8, 22, 24])
def test_ties_are_rounded_to_even(bits):
    """Above 22 bits a code plus 1.5 * 2^23 can pass 2^24, where float32 skips whole numbers; these round otherwise."""
    largest = 2 ** (bits - 1)
    x = torch.cat([torch.arange(-256, 256) + 0.5, uniform(-largest, largest)[: SIZE - 512].cpu()]).to(DEVICE)
    y = torch.empty_like(x)
    _round_kernel[(1,)](x, y, 2**bits - 1, SIZE)
    assert torch.equal(y, torch.round(x))


@pytest.mark.parametrize("ratio", [5, 17, 257])
def test_coarser_codes_are_the_nearest(ratio):
    codes = torch.round(uniform(-32767, 32767))
    y = torch.empty_like(codes)
    _coarser_kernel[(1,)](codes, y, ratio, SIZE)
    assert torch.equal(y, torch.round(codes.double() / ratio).float())


@pytest.mark.parametrize("signed", [True, False])
def test_clipping_is_that_of_the_grid_and_keeps_nan(signed):
    x, beta = uniform(-3, 3), torch.tensor([1.3], device=DEVICE)
    x[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.3])
    y = torch.empty_like(x)
    _clip_kernel[(1,)](x, beta, y, signed, launch._FUSED, SIZE)
    torch.testing.assert_close(y, grid.clip(x, beta, signed), rtol=0, atol=0, equal_nan=True)


def test_bounds_of_asymmetric_ranges_are_those_of_the_grid():
    bits = (2, 3, 4, 8, 16)
    alpha, beta = uniform(-2, 0)[:64], uniform(0, 2, seed=1)[:64]
    alpha[0], beta[0] = -0.5, 1.0  # at 2 bits both ends are ties
    alpha[1] = 0.0
    low, high = (torch.empty(64, len(bits), device=DEVICE) for _ in range(2))
    _bounds_kernel[(64,)](alpha, beta, low, high, tuple(2**b - 1 for b in bits), len(bits), launch._FUSED)
    for i, width in enumerate(bits):
        expected = grid.asymmetric_code_bounds(alpha, beta, width)
        assert torch.equal(low[:, i], expected[0])
        assert torch.equal(high[:, i], expected[1])


def test_codes_are_limited_where_there_are_bounds():
    codes = torch.round(uniform(-20, 20))
    y = torch.empty_like(codes)
    _on_grid_kernel[(1,)](codes, y, True, launch._FUSED, SIZE)
    assert torch.equal(y, codes.clamp(-3, 12))
    _on_grid_kernel[(1,)](codes, y, False, launch._FUSED, SIZE)
    assert torch.equal(y, codes)


@pytest.mark.parametrize(("first", "last", "product"), [(0, 3, 0.0625), (1, 3, 0.125), (2, 2, 1.0)])
def test_the_product_of_gates(first, last, product):
    y = torch.empty(1, device=DEVICE)
    _open_kernel[(1,)](torch.tensor([0.5, 0.25, 0.5], device=DEVICE), y, first, last)
    assert y.item() == product
