"""The paper's recursion by hand, and what it refuses; `test_reference` compares its gradients too."""

import pytest
import torch

from bayesbits.functional import recursive_gated_quantize


def test_the_recursion_refuses_what_it_is_not_defined_for():
    x, beta = torch.ones(3), torch.tensor(1.0)
    with pytest.raises(ValueError, match=r"widths that double, got \(2, 4, 6\)"):
        recursive_gated_quantize(x, beta, torch.ones(3), signed=True, bits=(2, 4, 6))
    with pytest.raises(ValueError, match=r"2 widths \(2, 4\) need 2 gates, got 3"):
        recursive_gated_quantize(x, beta, torch.ones(3), signed=True, bits=(2, 4))
    with pytest.raises(ValueError, match="non-empty"):
        recursive_gated_quantize(x, beta, torch.ones(0), signed=True, bits=())


@pytest.mark.parametrize(
    ("signed", "x", "residuals"),
    [(True, 0.5, (2 / 3, -2 / 15, -8 / 255)), (False, 0.45, (1 / 3, 2 / 15, -4 / 255))],
)
def test_residuals_are_added_one_inside_of_the_other(signed, x, residuals):
    first, second, third = residuals
    gates = torch.tensor([0.9, 0.8, 0.7], dtype=torch.float64)
    x, beta = torch.tensor([x], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    y = recursive_gated_quantize(x, beta, gates, signed=signed, bits=(2, 4, 8))
    assert y.item() == pytest.approx(0.9 * (first + 0.8 * (second + 0.7 * third)), rel=1e-12)
    two = recursive_gated_quantize(x, beta, list(gates[:2]), signed=signed, bits=(2, 4))
    assert two.item() == pytest.approx(0.9 * (first + 0.8 * second), rel=1e-12)
