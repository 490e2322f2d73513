"""Code that asks for float32 runs in float64, and tensors that are written into keep their dtype."""

import torch

from bayesbits.deploy.verification.float64_mode import Float64Mode

THIRD = torch.tensor(1.0) / 3


def test_operations_are_computed_in_float64() -> None:
    with Float64Mode():
        quotient = torch.tensor(1.0) / 3
        assert quotient.dtype == torch.float64
        assert quotient.item() == 1 / 3
        assert THIRD.float().dtype == THIRD.to(torch.float32).dtype == THIRD.double().dtype == torch.float64
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.ones(2).dtype == torch.float64
        assert torch.nn.functional.linear(torch.ones(1, 3), torch.full((1, 3), 0.1)).item() != THIRD.item()
    assert (torch.tensor(1.0) / 3).dtype == torch.float32


def test_the_conversion_is_exact() -> None:
    with Float64Mode():
        assert (THIRD * 1).item() == THIRD.item() != 1 / 3


def test_writing_keeps_the_dtype_of_the_tensor() -> None:
    written = torch.zeros(3)
    with Float64Mode():
        written[0] = torch.tensor(1.0) / 3
        written[1:] = torch.ones(2, dtype=torch.float64)
        written.add_(torch.tensor(1.0) / 4)
        written += torch.tensor(0.75)
    assert written.dtype == torch.float32
    assert torch.equal(written, torch.tensor([1 + 1 / 3, 2.0, 2.0]))


def test_integers_stay_integers() -> None:
    with Float64Mode():
        assert (torch.arange(3) + 1).dtype == torch.int64
        assert torch.tensor([1, 2]).sum().dtype == torch.int64
