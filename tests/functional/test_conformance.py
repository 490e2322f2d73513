"""One suite for every implementation of `gated_quantize`, against the paper's recursion in float64.

With a GPU present the same suite runs there: Triton on the device, plain torch beside it.
"""

import pytest
import torch
from torch import Tensor

from bayesbits.functional import dispatch, gated_quantize, grid, implementation, operation, recursive_gated_quantize
from tests.functional.gradients import (
    away_from_asymmetric_ties,
    away_from_ties,
    differentiate,
    straight_through,
)

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
IMPLEMENTATIONS = [name for name in dispatch.IMPLEMENTATIONS if not (GPU and name in ("eager", "compiled"))]
BITS = (2, 4, 8, 16, 32)
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
uncompiled = pytest.mark.parametrize("name", [name for name in IMPLEMENTATIONS if name != "compiled"])


def and_cases(names: str, *cases):
    """Every implementation with every case. For the compiled one, a case costs seconds of compiling, for code that is
    the definition's own: it takes two of them."""
    return pytest.mark.parametrize(
        ("name", *names.split(", ")),
        [(name, *case) for name in IMPLEMENTATIONS for case in (cases[:2] if name == "compiled" else cases)],
    )


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def oracle(x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, **options) -> dict[str, Tensor]:
    if beta.numel() == 1:
        return differentiate(
            recursive_gated_quantize, x.double(), beta.double(), gates.double(), grad.double(), **options
        )
    rows = [
        differentiate(recursive_gated_quantize, *(t.double() for t in (x[i], beta[i], gates, grad[i])), **options)
        for i in range(len(x))
    ]
    result = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    return {**result, "dgates": result["dgates"].sum(0)}


def roundings(x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, bits: tuple[int, ...], signed: bool) -> dict:
    """How far from float64 each result may be: what a few roundings of each of its terms come to, as a random walk.

    The terms of a gate's gradient are as large as the step of the width before; that of clipping without a grid is a
    difference of two numbers as large as the range. So each gate has its own bound, and the high ones a small one.
    """
    eps, largest = torch.finfo(grid.arithmetic_dtype(x.dtype)).eps, beta.double().max()
    steps = [largest, *(grid.step_size(largest, width, signed) for width in bits[:-1])]
    norm = grad.double().norm()
    below = torch.tensor([gates[:index].double().prod() for index in range(len(bits))], device=DEVICE)
    above = torch.tensor([gates[index + 1 :].double().prod() for index in range(len(bits))], device=DEVICE)
    dgates = eps * norm * below * (4 * torch.stack(steps) + largest * above)
    dbeta = 4 * eps * grad.double().reshape(beta.numel(), -1).norm(dim=1).reshape(beta.shape)
    return {"y": 4 * eps * largest, "dx": torch.finfo(x.dtype).tiny * eps, "dbeta": dbeta, "dgates": dgates}


def assert_equals_the_recursion(name: str, x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, **options) -> None:
    """Every element of every result, and so each gate's gradient, is the recursion's in float64 but for rounding."""
    truth = oracle(x, beta, gates, grad, **options)
    with implementation(name):
        ours = differentiate(gated_quantize, x, beta, gates, grad, **options)
    allowed = roundings(x, beta, gates, grad, **options)
    dtypes = {"y": x.dtype, "dx": x.dtype, "dbeta": beta.dtype, "dgates": gates.dtype}
    for key, expected in truth.items():
        assert ours[key].dtype == dtypes[key], key
        assert ours[key].shape == expected.shape, key
        error = (ours[key].double() - expected).abs()
        bound = allowed[key] + 4 * torch.finfo(dtypes[key]).eps * expected.abs()
        assert (error <= bound).all(), f"{key}: off by {(error / bound).max()} times what rounding explains"


@and_cases(
    "signed, dtype", (True, torch.float32), (False, torch.bfloat16), (False, torch.float32), (True, torch.bfloat16),
    (True, torch.float16), (False, torch.float16), (True, torch.float64), (False, torch.float64),
)  # fmt: skip
def test_output_and_gradients_equal_the_recursion(name, signed, dtype):
    beta, gates = torch.tensor(1.7, device=DEVICE), torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5], device=DEVICE)
    x = away_from_ties(random(3, 1001).to(dtype), beta, signed)
    assert_equals_the_recursion(name, x, beta, gates, random(3, 1001, seed=1).to(dtype), signed=signed, bits=BITS)


@every_implementation
@pytest.mark.parametrize("gates", [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 1], [1, 0, 0.5, 1, 0]])
def test_gradients_equal_the_recursion_at_gates_of_exactly_zero_and_one(name, gates):
    beta, gates = torch.tensor(0.03, device=DEVICE), torch.tensor(gates, dtype=torch.float32, device=DEVICE)
    x = away_from_ties(random(999) * 0.02, beta, True)
    assert_equals_the_recursion(name, x, beta, gates, random(999, seed=1), signed=True, bits=BITS)


@and_cases("bits", ((4, 8),), ((2,),), ((8,),), ((2, 4, 8, 16),))
def test_narrower_sets_of_widths_equal_the_recursion(name, bits):
    beta, gates = torch.tensor(1.1, device=DEVICE), torch.linspace(0.9, 0.4, len(bits)).to(DEVICE)
    x = away_from_ties(random(515), beta, False)
    assert_equals_the_recursion(name, x, beta, gates, random(515, seed=1), signed=False, bits=bits)


@and_cases(
    "dtype, shape", (torch.float32, (5, 3, 3, 3)), (torch.bfloat16, (4, 4099)), (torch.float32, (4, 4099)),
    (torch.bfloat16, (5, 3, 3, 3)), (torch.float32, (7, 1)), (torch.bfloat16, (7, 1)),
)  # fmt: skip
def test_a_range_for_each_channel_equals_the_recursion_channel_by_channel(name, dtype, shape):
    beta = torch.linspace(0.5, 2.0, shape[0]).to(DEVICE)
    gates = torch.tensor([1.0, 0.9, 0.7, 0.4, 0.2], device=DEVICE)
    x = away_from_ties(random(*shape).to(dtype), beta, True)
    assert_equals_the_recursion(name, x, beta, gates, random(*shape, seed=1).to(dtype), signed=True, bits=BITS)


LAYOUTS = {
    "one element": lambda: random(1),
    "no axes": lambda: random(1)[0],
    "prime": lambda: random(4099),
    "several blocks": lambda: random(9001),
    "strided": lambda: random(64, 66)[::2, 1::3],
    "transposed": lambda: random(31, 17, 5).transpose(0, 2),
    "channels_last": lambda: random(2, 3, 5, 7).contiguous(memory_format=torch.channels_last),
    "expanded": lambda: random(1, 37).expand(5, 37),
}


@every_implementation
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_numbers_and_keeps_its_strides(name, layout):
    x = LAYOUTS[layout]()
    beta, gates = torch.tensor(1.3, device=DEVICE), torch.tensor([1.0, 0.9, 0.8, 0.3, 0.5], device=DEVICE)
    grad = random(*x.shape, seed=1)
    with implementation(name):
        leaf = x.detach().requires_grad_()
        y = gated_quantize(leaf, beta, gates, signed=True)
        (dx,) = torch.autograd.grad(y, leaf, grad)
    with implementation("torch"):
        flat = x.detach().contiguous().reshape(-1).requires_grad_()
        expected = gated_quantize(flat, beta, gates, signed=True)
        (expected_dx,) = torch.autograd.grad(expected, flat, grad.reshape(-1))
    torch.testing.assert_close(y.reshape(-1), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(dx.reshape(-1), expected_dx, rtol=1e-6, atol=0)
    assert y.stride() == torch.empty_like(x).stride()


@every_implementation
@pytest.mark.parametrize("beta", [torch.tensor(1.0), torch.ones(3)])
def test_an_empty_tensor_gives_an_empty_tensor_and_gradients_of_zero(name, beta):
    x = torch.empty(3, 0, device=DEVICE)
    gates = torch.ones(5, device=DEVICE)
    with implementation(name):
        result = differentiate(gated_quantize, x, beta.to(DEVICE), gates, torch.empty(3, 0, device=DEVICE), signed=True)
    assert result["y"].shape == (3, 0)
    assert not result["dbeta"].any()
    assert not result["dgates"].any()


def ties_and_edges(beta: Tensor, bits: int, signed: bool) -> Tensor:
    """Every tie of a small grid as float32 has it, the numbers beside it, and the same at both ends of the range."""
    low, high = grid.code_bounds(bits, signed)
    codes = torch.arange(max(low, -600) - 1, min(high, 600) + 2, device=DEVICE)
    points = torch.cat([(codes + 0.5) * grid.step_size(beta, bits, signed), codes * grid.step_size(beta, bits, signed)])
    points = torch.cat([points, beta.reshape(1), -beta.reshape(1), beta.reshape(1) * grid.EDGE])
    infinity = torch.tensor(torch.inf, device=DEVICE)
    return torch.cat([points, torch.nextafter(points, infinity), torch.nextafter(points, -infinity)])


@every_implementation
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_binary_gates_give_the_direct_codes_at_ties_and_edges_too(name, width, signed):
    gates = torch.tensor([1.0 if b <= width else 0.0 for b in BITS], device=DEVICE)
    for value in (1.0, 0.1, 3.3333333, 1.1754e-3, 7e10, 2.5e-20):
        beta = torch.tensor(value, device=DEVICE)
        x = torch.cat([ties_and_edges(beta, width, signed), random(5000) * value])
        with implementation(name):
            y = gated_quantize(x, beta, gates, signed=signed)
        codes = grid.quantize_to_codes(x, beta, bits=width, signed=signed)
        low, high = grid.code_bounds(width, signed)
        assert codes.min() >= low
        assert codes.max() <= high
        assert torch.equal(y, grid.dequantize(codes, beta, bits=width, signed=signed))


@every_implementation
def test_widths_that_do_not_double_have_their_own_exact_grids(name):
    bits, beta = (2, 3, 5, 8, 24), torch.tensor(0.77, device=DEVICE)
    x = random(5000)
    for position, width in enumerate(bits):
        gates = torch.tensor([1.0 if i <= position else 0.0 for i in range(len(bits))], device=DEVICE)
        with implementation(name):
            y = gated_quantize(x, beta, gates, signed=True, bits=bits)
        codes = grid.quantize_to_codes(x, beta, bits=width, signed=True)
        assert torch.equal(y, grid.dequantize(codes, beta, bits=width, signed=True))


@every_implementation
@pytest.mark.parametrize("signed", [True, False])
def test_32_bits_is_clipping(name, signed):
    x, beta = random(5000), torch.tensor(0.5, device=DEVICE)
    with implementation(name):
        y = gated_quantize(x, beta, torch.ones(5, device=DEVICE), signed=signed)
    assert torch.equal(y, x.clamp(-0.5 * grid.EDGE if signed else 0.0, 0.5 * grid.EDGE))


@every_implementation
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gates", [[1.0] * 5, [0.0] * 5, [1.0, 0.5, 0.5, 0.0, 0.0]])
def test_nan_stays_nan_and_infinities_clip(name, gates, dtype):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0], dtype=dtype, device=DEVICE)
    with implementation(name):
        y = gated_quantize(x, torch.tensor(2.0, device=DEVICE), torch.tensor(gates, device=DEVICE), signed=True)
    assert y.isnan().tolist() == [True, False, False, False]
    assert y[1] == -y[2]
    # The signed grids of 2, 4 and 8 bits end half a step before the range does.
    expected = 2 * (0.5 * 2 / 3 + 0.25 * 14 / 15 + 0.25 * 254 / 255) if gates[1] == 0.5 else 2 * gates[0]
    assert y[1].item() == pytest.approx(expected, rel=2 * torch.finfo(dtype).eps, abs=1e-6)


@every_implementation
def test_no_element_is_left_unwritten(name, monkeypatch):
    """Fresh memory is filled with NaN for the duration, which any element that is not written would show."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(3).isnan().all()
        with implementation(name):
            result = differentiate(
                gated_quantize, random(5, 2003), torch.ones(5, device=DEVICE), torch.full((5,), 0.5, device=DEVICE),
                random(5, 2003, seed=1), signed=True,
            )  # fmt: skip
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any(tensor.isnan().any() for tensor in result.values())


@every_implementation
def test_the_implementation_that_was_asked_for_really_ran(name, monkeypatch):
    calls = []
    if name in ("traced", "opaque"):
        monkeypatch.setattr(operation._GatedQuantize, "apply", None)
        with implementation(name):
            y = gated_quantize(random(100).requires_grad_(), 1.0, torch.ones(5, device=DEVICE), signed=True)
        assert (y.grad_fn.name() == "GeneratedBackwardFor_bayesbits_gated_quantize_defaultBackward") == (
            name == "opaque"
        )
        return
    module = {"torch": "reference", "eager": "eager", "compiled": "compiled", "triton": "triton_launch"}[name]
    chosen = dispatch._triton() if module == "triton_launch" else getattr(dispatch, module)
    for direction in ("forward", "backward"):
        original = getattr(chosen, direction)
        monkeypatch.setattr(
            chosen,
            direction,
            lambda *a, original=original, direction=direction: (calls.append(direction), original(*a))[1],
        )
    with implementation(name):
        differentiate(
            gated_quantize,
            random(100),
            torch.ones((), device=DEVICE),
            torch.ones(5, device=DEVICE),
            random(100),
            signed=True,
        )
    assert calls == ["forward", "backward"]


@every_implementation
def test_only_x_and_scalars_are_kept_for_backward(name):
    kept = []
    x = random(100, 100).requires_grad_()
    beta, gates = torch.ones((), device=DEVICE).requires_grad_(), torch.ones(5, device=DEVICE).requires_grad_()
    # What is kept of the traced form, a compiler decides; this one keeps x and two masks.
    function = torch.compile(gated_quantize, fullgraph=True) if name == "traced" else gated_quantize
    with implementation(name), torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        function(x, beta, gates, signed=True)
    large = [t for t in kept if t.numel() > 5 and t.dtype != torch.bool]
    assert [t.data_ptr() for t in large] == [x.data_ptr()]
    assert len(kept) <= 3 or name == "traced"


@every_implementation
def test_a_frozen_quantizer_gives_only_the_gradient_of_x(name):
    x = random(300).requires_grad_()
    with implementation(name):
        gated_quantize(x, torch.ones((), device=DEVICE), torch.ones(5, device=DEVICE), signed=True).sum().backward()
    assert torch.equal(x.grad, (x.detach().abs() <= 1).float())


@every_implementation
def test_the_result_can_be_changed_in_place(name):
    x = random(300).requires_grad_()
    with implementation(name):
        gated_quantize(
            x, torch.ones((), device=DEVICE), torch.ones(5, device=DEVICE), signed=True
        ).relu_().sum().backward()
    assert torch.equal(x.grad, ((x.detach() > 0) & (x.detach() <= 1)).float())


def assert_equals_straight_through(
    name: str, x: Tensor, ends: tuple[float, float], gates: Tensor, bits: tuple[int, ...]
) -> None:
    """Every result for an asymmetric range, the gradients of both ends too, is that of autograd in float64."""
    alpha, beta = (torch.tensor(end, device=DEVICE) for end in ends)
    x, grad = away_from_asymmetric_ties(x, alpha, beta, bits), random(*x.shape, seed=1).to(x.dtype)
    wide = [tensor.double() for tensor in (x, beta, gates, grad)]
    widest = 53 if x.dtype == torch.float64 else 24
    truth = differentiate(straight_through, *wide, alpha=alpha.double(), bits=bits, widest_grid=widest)
    with implementation(name):
        ours = differentiate(gated_quantize, x, beta, gates, grad, alpha=alpha, signed=True, bits=bits)
    # As `roundings`, where the half of the range's length is what beta is there.
    allowed = roundings(x, (beta - alpha) / 2, gates, grad, bits, signed=True)
    allowed["dalpha"] = allowed["dbeta"] = 2 * allowed["dbeta"]
    for key, expected in truth.items():
        assert ours[key].shape == expected.shape, key
        error = (ours[key].double() - expected).abs()
        bound = 2 * allowed[key] + 4 * torch.finfo(ours[key].dtype).eps * expected.abs()
        assert (error <= bound).all(), f"{key}: off by {(error / bound).max()} times what rounding explains"


@and_cases("width", (8,))
def test_asymmetric_ranges_of_one_width(name, width):
    gates = torch.tensor([0.9], device=DEVICE)
    assert_equals_straight_through(name, random(3, 1001), (-0.17, 2.0), gates, (width,))


@uncompiled
@pytest.mark.parametrize(
    ("ends", "dtype"),
    [((-0.17, 2.0), torch.float32), ((-1.1, 0.9), torch.bfloat16), ((-2.0, 2e-3), torch.float32),
     ((-1e-3, 1.3), torch.float16), ((-0.41, 1.0), torch.float64), ((-3e-9, 2.1e-8), torch.float32)],
)  # fmt: skip
def test_asymmetric_ranges_have_the_output_and_gradients_of_the_closed_form(name, ends, dtype):
    gates = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5], device=DEVICE)
    x = (random(3, 1001) * max(-ends[0], ends[1])).to(dtype)
    assert_equals_straight_through(name, x, ends, gates, BITS)


@uncompiled
@pytest.mark.parametrize("bits", [(4, 8), (3, 5), (2, 3, 8, 24), (32,)])
def test_asymmetric_ranges_at_other_widths(name, bits):
    gates = torch.linspace(0.9, 0.4, len(bits)).to(DEVICE)
    assert_equals_straight_through(name, random(515), (-0.3, 1.7), gates, bits)


def asymmetric_ties_and_edges(alpha: Tensor, beta: Tensor, bits: int) -> Tensor:
    """Ties and grid points near zero and near both ends, the ends themselves, and the numbers beside all of these."""
    low, high = (int(code) for code in grid.asymmetric_code_bounds(alpha, beta, bits))
    near = {code for center in (low, 0, high) for code in range(max(low - 2, center - 40), min(high + 2, center + 40))}
    codes, step = torch.tensor(sorted(near), device=DEVICE), grid.step_size(beta, bits, True, alpha)
    points = torch.cat([(codes + 0.5) * step, codes * step, alpha.reshape(1), beta.reshape(1)])
    infinity = torch.tensor(torch.inf, device=DEVICE)
    return torch.cat([points, torch.nextafter(points, infinity), torch.nextafter(points, -infinity)])


@every_implementation
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_binary_gates_give_the_direct_codes_of_asymmetric_ranges(name, width):
    gates = torch.tensor([1.0 if b <= width else 0.0 for b in BITS], device=DEVICE)
    for ends in ((-0.17, 2.0), (-1.0, 1.0), (-2.5, 0.5), (-0.5, 1e-5), (-1e-7, 3.3333333), (-7e9, 2e10), (0.0, 1.0)):
        alpha, beta = (torch.tensor(end, device=DEVICE) for end in ends)
        x = torch.cat([asymmetric_ties_and_edges(alpha, beta, width), random(2000) * (beta - alpha)])
        with implementation(name):
            y = gated_quantize(x, beta, gates, signed=True, alpha=alpha)
        codes = grid.quantize_to_codes(x, beta, bits=width, signed=True, alpha=alpha)
        assert torch.equal(y, grid.dequantize(codes, beta, bits=width, signed=True, alpha=alpha)), ends


@uncompiled
def test_asymmetric_ranges_clip_at_32_bits_and_keep_nan_and_zero(name):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 0.7, -0.2, -0.3], device=DEVICE)
    for gates, bits in (([1.0], (32,)), ([1.0, 0.4], (2, 4))):
        with implementation(name):
            y = gated_quantize(x, 1.0, gates, signed=True, bits=bits, alpha=-0.25)
        assert y.isnan().tolist() == [True] + [False] * 6
        assert y[3] == 0
        if bits == (32,):
            assert y[1:].tolist() == torch.tensor([1.0, -0.25, 0.0, 0.7, -0.2, -0.25]).tolist()
        else:  # steps of 5/12 and 1/12: the codes of 2 bits are -1..2, those of 4 bits -3..12
            assert y[1].item() == pytest.approx(0.6 * 2 * 5 / 12 + 0.4 * 1.0)
            assert y[2].item() == pytest.approx(0.6 * -5 / 12 + 0.4 * -0.25)


@uncompiled
def test_gradients_at_an_end_between_two_codes_are_those_of_the_definition(name):
    """With alpha = -beta both ends are ties of every width, where each implementation must choose the same code."""
    gates = torch.tensor([0.9, 0.8, 0.7], device=DEVICE)
    ends = {"alpha": torch.tensor(-0.61, device=DEVICE), "signed": True, "bits": (2, 4, 8)}
    x, grad = random(2000).sign() * (1 + random(2000, seed=2).abs()), random(2000, seed=1)
    results = []
    for one in (name, "torch"):
        with implementation(one):
            results.append(differentiate(gated_quantize, x, torch.tensor(0.61, device=DEVICE), gates, grad, **ends))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-4)
