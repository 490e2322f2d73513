"""The definition is the paper's: its values and every gradient, in float64, against the recursion and by hand.

The other implementations are compared with these in `test_conformance`. Left out are the places at which the closed
form and the recursion differ by design: exact ties, and x on the very end of the range.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesbits.functional import grid, recursive_gated_quantize, reference
from tests.functional.gradients import away_from_ties, differentiate


def recursion(x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, signed: bool, bits: tuple[int, ...]):
    return differentiate(recursive_gated_quantize, x, beta, gates, grad, signed=signed, bits=bits)


def hand_written(x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, signed: bool, bits: tuple[int, ...]):
    gradients = reference.backward(grad, x, beta, gates, signed, bits)
    y = reference.forward(x, beta, gates, signed, bits)
    assert gradients[3] is None
    return {"y": y, **dict(zip(("dx", "dbeta", "dgates"), gradients[:3], strict=True))}


def differentiable(x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, signed: bool, bits: tuple[int, ...]):
    return differentiate(reference.differentiable, x, beta, gates, grad, signed=signed, bits=bits)


FORMS = {"hand-written": hand_written, "differentiable": differentiable}


def assert_equal(
    ours: dict[str, Tensor], truth: dict[str, Tensor], beta: Tensor, grad: Tensor, by_differences: tuple[str, ...] = ()
) -> None:
    """Every result and each gate's gradient to 1e-12 of what the terms that it sums come to; by differences 1e-9."""
    total, largest = grad.abs().sum().item(), beta.max().item()
    scale = {"y": largest, "dx": grad.abs().max().item(), "dbeta": total, "dgates": total * largest}
    assert ours.keys() == truth.keys()
    for key, expected in truth.items():
        allowed = scale[key] * (1e-9 if key in by_differences else 1e-12)
        torch.testing.assert_close(ours[key], expected, rtol=0, atol=allowed, msg=lambda m, key=key: f"{key}: {m}")


# x and its residuals for beta = 1, divided and rounded on paper: x_2, then eps_4, eps_8, eps_16 and eps_32. Numbers
# beyond the range are clipped to 1 - 1e-7 first, which only the last grid can see.
BY_HAND = {
    "signed, inside": (True, 0.5, [2 / 3, -2 / 15, -8 / 255, -128 / 65535, -32768 / 4294967295]),
    "signed, inside, negative": (True, -0.5, [-2 / 3, 2 / 15, 8 / 255, 128 / 65535, 32768 / 4294967295]),
    "signed, above": (True, 3.0, [2 / 3, 4 / 15, 16 / 255, 256 / 65535, 65108 / 4294967295]),
    "signed, below": (True, -3.0, [-2 / 3, -4 / 15, -16 / 255, -256 / 65535, -65108 / 4294967295]),
    "unsigned, inside": (False, 0.45, [1 / 3, 2 / 15, -4 / 255, -64 / 65535, -16384 / 4294967295]),
    "unsigned, above": (False, 2.0, [1.0, 0.0, 0.0, 0.0, -429 / 4294967295]),
    "unsigned, below": (False, -0.3, [0.0, 0.0, 0.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("beta", [1.0, 4.0])
@pytest.mark.parametrize("case", BY_HAND)
@pytest.mark.parametrize("form", [recursion, hand_written, differentiable])
def test_values_and_gradients_by_hand(form, case, beta):
    signed, x, residuals = BY_HAND[case]
    z2, z4, z8, z16, z32 = gates = [0.9, 0.8, 0.7, 0.6, 0.5]
    r2, r4, r8, r16, r32 = (beta * residual for residual in residuals)
    y = z2 * (r2 + z4 * (r4 + z8 * (r8 + z16 * (r16 + z32 * r32))))
    inside = "inside" in case
    grad = 3.0
    dgates = [
        r2 + z4 * (r4 + z8 * (r8 + z16 * (r16 + z32 * r32))),
        z2 * (r4 + z8 * (r8 + z16 * (r16 + z32 * r32))),
        z2 * z4 * (r8 + z16 * (r16 + z32 * r32)),
        z2 * z4 * z8 * (r16 + z32 * r32),
        z2 * z4 * z8 * z16 * r32,
    ]
    expected = {
        "y": [y],
        "dx": [grad * z2 if inside else 0.0],
        # All values grow with beta; inside, what x itself gives does not.
        "dbeta": grad * (y - (z2 * x * beta if inside else 0.0)) / beta,
        "dgates": [grad * value for value in dgates],
    }
    tensors = (torch.tensor(value, dtype=torch.float64) for value in ([x * beta], beta, gates, [grad]))
    for key, value in form(*tensors, signed, (2, 4, 8, 16, 32)).items():
        assert value.tolist() == pytest.approx(expected[key], rel=1e-12, abs=1e-13), key


DOUBLING = [
    (2, 4, 8, 16, 32),
    (2,),
    (8,),
    (3, 6),
    (4, 8),
    (2, 4, 8),
    (5, 10, 20),
    (3, 6, 12, 24),
    (7, 14, 28),
    (16, 32),
]


OTHER = [(2, 3), (2, 8), (3, 5, 7), (4, 6, 8), (2, 3, 5, 8, 24), (2, 4, 6, 8, 16, 32)]


gate_values = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


@st.composite
def problems(draw, widths: list[tuple[int, ...]]):
    """x, beta, gates and a gradient; one range, or one for each row."""
    signed, bits, seed = draw(st.booleans()), draw(st.sampled_from(widths)), draw(st.integers(0, 10**6))
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(seed)
    x, grad = torch.randn(2, rows, columns, generator=generator, dtype=torch.float64)
    ranges = draw(st.floats(0.1, 3)) * (0.5 + torch.rand(rows, 1, generator=generator, dtype=torch.float64))
    beta = ranges if draw(st.booleans()) else ranges[0, 0]
    gates = torch.tensor([draw(gate_values) for _ in bits], dtype=torch.float64)
    return away_from_ties(x, beta, signed, bits, 1e-3), beta, gates, grad, signed, bits


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None)
@given(problem=problems(DOUBLING))
def test_the_definition_equals_the_recursion(form, problem):
    _, beta, _, grad, *_ = problem
    assert_equal(FORMS[form](*problem), recursion(*problem), beta, grad)


def mixture(x, beta, gates, bits, signed, rounded):
    """sum_b (C_b - C_next(b)) Q_b(x), with Q_b(x) = clip(x) + (what rounding changed, in steps) s_b."""
    opened = np.cumprod(gates)
    total = 0.0
    for index, width in enumerate(bits):
        weight = opened[index] - (opened[index + 1] if index + 1 < len(bits) else 0.0)
        step = (2 * beta if signed else beta) / (2**width - 1)
        clipped = np.clip(x, -grid.EDGE * beta if signed else 0.0, grid.EDGE * beta)
        changed = np.rint(clipped / step) - clipped / step if rounded is None else rounded[index]
        total = total + weight * (clipped + changed * step)
    return total


def differences(x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, signed: bool, bits: tuple[int, ...]):
    """The direct definition in numpy, differentiated by differences.

    With the roundings held (straight through), the definition is linear in each gate, in beta and in x as long as no
    element enters or leaves the range; so differences are derivatives.
    """
    x, beta, gates, grad = (tensor.numpy() for tensor in (x, beta, gates, grad))
    clipped = np.clip(x, -grid.EDGE * beta if signed else 0.0, grid.EDGE * beta)
    steps = [(2 * beta if signed else beta) / (2**width - 1) for width in bits]
    rounded = [np.rint(clipped / step) - clipped / step for step in steps]

    def shifted(small: float, dx: float = 0.0, dbeta: float = 0.0):
        ahead, back = (
            mixture(x + side * small * dx, beta + side * small * dbeta, gates, bits, signed, rounded)
            for side in (1, -1)
        )
        return grad * (ahead - back) / (2 * small)

    dbeta = shifted(1e-5 * beta.min(), dbeta=1.0)
    dgates = []
    for index in range(len(bits)):
        off, on = gates.copy(), gates.copy()
        off[index], on[index] = 0.0, 1.0
        change = mixture(x, beta, on, bits, signed, None) - mixture(x, beta, off, bits, signed, None)
        dgates.append((grad * change).sum())
    return {
        "y": torch.tensor(mixture(x, beta, gates, bits, signed, None)),
        "dx": torch.tensor(shifted(1e-5 * beta.min(), dx=1.0)),
        "dbeta": torch.tensor(dbeta).sum_to_size(beta.shape),
        "dgates": torch.tensor(dgates, dtype=torch.float64),
    }


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None)
@given(problem=problems(OTHER + DOUBLING))
def test_the_definition_of_any_widths_equals_differences_of_the_direct_one(form, problem):
    _, beta, _, grad, *_ = problem
    assert_equal(FORMS[form](*problem), differences(*problem), beta, grad, by_differences=("dx", "dbeta"))
