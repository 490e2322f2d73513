"""The kernels' own numbers, by Triton's interpreter; `test_conformance` compares their results with the paper's."""

import pytest
import torch

from bayesbits.functional import reference

kernels = pytest.importorskip("bayesbits.functional.triton_kernels")


def test_widths_are_chained_where_each_grid_divides_the_next_and_float32_holds_it():
    doubling = kernels._widths((2, 4, 8, 16, 32), True)
    assert doubling["LEVELS"] == (3, 15, 255, 65535, 0)
    assert (doubling["GRIDS"], doubling["LARGEST"], doubling["CHAIN"]) == (4, 32767.0, True)
    assert kernels._widths((2, 4, 8), False)["LARGEST"] == 255.0
    others = [kernels._widths(bits, True)["CHAIN"] for bits in ((8,), (2, 3), (9, 18), (32,))]
    assert others == [False, False, False, False]
    assert kernels._widths((32,), True)["GRIDS"] == 0


@pytest.mark.parametrize("bits", [(2, 4, 8), (3, 5), (8, 32)])
def test_rows_of_odd_lengths_equal_the_definition(bits):
    generator = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, grad = (torch.randn(3, 1031, generator=generator).to(device) for _ in range(2))
    beta = torch.tensor([[0.5], [1.0], [2.0]], device=device)
    gates = torch.linspace(0.9, 0.4, len(bits)).to(device)
    torch.testing.assert_close(
        kernels.forward(x, beta, gates, True, bits), reference.forward(x, beta, gates, True, bits)
    )
    ours, theirs = (module.backward(grad, x, beta, gates, True, bits) for module in (kernels, reference))
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1:3], theirs[1:3], rtol=1e-4, atol=1e-4)
    assert ours[3] is theirs[3] is None
    dx, *sums = kernels.backward(grad, x, beta, gates, True, bits, sums_needed=False)
    assert torch.equal(dx, theirs[0])
    assert sums == [None, None, None]
