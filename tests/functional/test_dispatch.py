"""Which implementation is chosen for which tensor, and the layout in which it gets its tensors."""

from types import SimpleNamespace

import pytest
import torch

from bayesbits.functional import compiled, dispatch, eager, gated_quantize, implementation, reference


def like(dtype=torch.float32, cuda=False, elements=10):
    """What `choose` and `has_kernel` ask of a tensor, for one that may be on a device that is not here."""
    return SimpleNamespace(
        dtype=dtype, is_cuda=cuda, device=torch.device("cuda" if cuda else "cpu"), numel=lambda: elements
    )


@pytest.fixture
def kernels(monkeypatch):
    """Both fast paths are there, whatever this machine has."""
    found = SimpleNamespace()
    monkeypatch.setattr(dispatch, "_triton", lambda: found)
    monkeypatch.setattr(dispatch, "_TRITON_FOUND", True)
    monkeypatch.setattr(compiled, "available", lambda: True)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_runs_on_the_gpu(kernels, dtype):
    x = like(dtype, cuda=True)
    assert dispatch.choose(x) is dispatch.choose(x, 65_535) is kernels
    assert dispatch.choose(x, 65_536) is reference
    assert dispatch.has_kernel(x, 1)
    assert dispatch.has_kernel(x, 65_535)
    assert not dispatch.has_kernel(x, 65_536)
    assert dispatch.has_kernel(like(dtype, cuda=True, elements=1), 1)
    assert not dispatch.has_kernel(like(dtype, cuda=True, elements=0), 1)
    assert not dispatch.has_kernel(like(dtype), 1)


@pytest.mark.parametrize(
    ("elements", "rows", "fits"),
    [
        (2**31 - 2**24 - 1, 1, True),
        (2**31 - 2**24, 1, False),
        (2**31 - 1, 1, False),
        (2**31, 1, True),  # counted in 64 bits
        (3 * (2**31 - 2**24 - 1), 3, True),
        (3 * (2**31 - 2**24), 3, False),
        (3 * 2**31 - 1, 3, False),
        (3 * 2**31, 3, True),
        (65_535, 65_535, True),
        (65_536, 65_536, False),
        (0, 1, True),
    ],
)
def test_no_kernel_runs_where_the_block_ahead_would_overflow_its_offsets(kernels, elements, rows, fits):
    assert dispatch.kernel_can_count(elements, rows) == fits
    assert (dispatch.choose(like(cuda=True, elements=elements), rows) is kernels) == fits


def test_float64_is_left_to_the_definition(kernels):
    assert dispatch.choose(like(torch.float64, cuda=True, elements=2**20)) is reference
    assert not dispatch.has_kernel(like(torch.float64, cuda=True), 1)


def test_without_triton_the_definition_runs_on_the_gpu(kernels, monkeypatch):
    monkeypatch.setattr(dispatch, "_triton", lambda: None)
    monkeypatch.setattr(dispatch, "_TRITON_FOUND", False)
    assert dispatch.choose(like(cuda=True, elements=2**20)) is reference
    assert not dispatch.has_kernel(like(cuda=True), 1)
    with implementation("triton"), pytest.raises(RuntimeError, match="triton cannot be imported"):
        dispatch.choose(like())


def test_large_tensors_on_the_cpu_are_compiled(kernels, monkeypatch):
    assert dispatch.choose(like(elements=compiled.MIN_ELEMENTS - 1)) is eager
    assert dispatch.choose(like(elements=compiled.MIN_ELEMENTS)) is compiled
    monkeypatch.setattr(compiled, "available", lambda: False)
    assert dispatch.choose(like(elements=compiled.MIN_ELEMENTS)) is eager


def test_what_is_asked_for_is_chosen_inside_of_the_block_only(kernels):
    large, small = like(elements=compiled.MIN_ELEMENTS), like()
    modules = {"torch": reference, "eager": eager, "compiled": compiled, "triton": kernels, "traced": reference}
    for name, expected in modules.items():
        with implementation(name):
            assert dispatch.forced() == name
            assert dispatch.choose(large) is dispatch.choose(small) is expected
        assert dispatch.forced() is None
    with implementation("opaque"):  # one operation, inside which the choice is free
        assert dispatch.choose(large) is compiled
        assert dispatch.choose(small) is eager
        assert dispatch.choose(like(cuda=True)) is kernels
    with pytest.raises(ZeroDivisionError), implementation("torch"):
        raise ZeroDivisionError
    assert dispatch.forced() is None
    with pytest.raises(ValueError, match="must be one of torch, eager, compiled, triton, traced, opaque, got 'numpy'"):
        implementation("numpy").__enter__()


class Recorded:
    """An implementation that remembers the matrices that it gets."""

    __name__ = "recorded"

    def __init__(self):
        self.seen = []

    def forward(self, x, beta, gates, signed, bits, dtype):
        self.seen.append((x, beta))
        return reference.forward(x, beta, gates, signed, bits, dtype)

    def backward(self, grad, x, beta, gates, signed, bits, sums_needed):
        self.seen += [(grad, beta), (x, beta)]
        return reference.backward(grad, x, beta, gates, signed, bits, sums_needed)


LAYOUTS = {
    "dense": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1, -1),
}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_implementation_gets_one_row_a_range_and_copies_only_where_it_must(layout, rows):
    x = LAYOUTS[layout](torch.randn(4, 3, 2, 5, generator=torch.Generator().manual_seed(0)))
    beta, gates, recorded = torch.linspace(0.5, 1, rows), torch.tensor([0.9, 0.6]), Recorded()
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    y = dispatch.run_forward(x, beta, gates, True, (2, 4), recorded)
    dx, dbeta, dgates, dalpha = dispatch.run_backward(grad, x, beta, gates, True, (2, 4), True, recorded)
    wide = beta.reshape(-1, 1, 1, 1)
    expected = reference.backward(grad, x, wide, gates, True, (2, 4))
    assert torch.equal(y, reference.forward(x, wide, gates, True, (2, 4)))
    assert torch.equal(dx, expected[0])
    torch.testing.assert_close(dbeta, expected[1].reshape(beta.shape))
    torch.testing.assert_close(dgates, expected[2])
    assert dalpha is None
    for matrix, ranges in recorded.seen:
        assert matrix.shape == (rows, 120 // rows)
        assert matrix.is_contiguous()
        assert ranges.shape == (rows, 1)
    dense = layout in ("dense", "channels last") or (layout == "transposed" and rows == 1)
    assert (recorded.seen[0][0].data_ptr() == x.data_ptr()) == dense
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    if dense:
        assert y.stride() == dx.stride() == x.stride()


def test_a_range_that_is_not_needed_has_no_gradient():
    x, beta, gates = torch.randn(3, 4), torch.ones(()), torch.ones(1)
    dx, *sums = dispatch.run_backward(torch.ones(3, 4), x, beta, gates, True, (8,), False, reference)
    assert torch.equal(dx, (x.abs() <= 1).float())
    assert sums == [None, None, None]


def test_a_result_belongs_to_nobody_else():
    y = gated_quantize(torch.randn(2, 3).requires_grad_(), 1.0, [1.0], signed=True, bits=(8,))
    assert y._base is None


def test_what_has_run_inside_of_a_block_is_seen():
    x, beta, gates, recorded = torch.randn(3, 4), torch.ones(()), torch.ones(1), Recorded()
    dispatch.run_forward(x, beta, gates, True, (8,), reference)
    with dispatch.watching() as ran:
        dispatch.run_forward(x, beta, gates, True, (8,), recorded)
        dispatch.run_forward(x, beta, gates, True, (8,), recorded)
    dispatch.run_forward(x, beta, gates, True, (8,), reference)
    assert ran == {"recorded": 2}
