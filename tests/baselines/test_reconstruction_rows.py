"""Rows of layers are what the layers compute, for any geometry."""

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bayesbits.baselines.reconstruction_rows import RowSampler, multiply_rows


def layer(groups: int = 1, kind: str = "conv") -> SimpleNamespace:
    """What rows need of a layer's record."""
    return SimpleNamespace(groups=groups, kind=kind)


def all_rows(sampler: RowSampler, module: nn.Module, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    positions = sampler.positions(x, output, 10**6, torch.Generator())
    rows = multiply_rows(sampler.inputs(x, positions), module.weight, module.bias, sampler.layer.groups)
    return rows, sampler.outputs(output, positions)


@settings(max_examples=40, deadline=None)
@given(
    axes=st.integers(1, 3), kernel=st.integers(1, 3), stride=st.integers(1, 3), padding=st.integers(0, 2),
    dilation=st.integers(1, 2), groups=st.sampled_from([1, 2, 4]), bias=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_of_convolutions_are_their_outputs(axes, kernel, stride, padding, dilation, groups, bias, seed):
    torch.manual_seed(seed)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    module = kind(4, 8, kernel, stride, padding, dilation, groups, bias)
    x = torch.randn(2, 4, *[5 + axis for axis in range(axes)])
    with torch.no_grad():
        output = module(x)
        sampler = RowSampler.of(module, layer(groups), module.weight, module.bias, x, output)
        assert sampler is not None
        torch.testing.assert_close(*all_rows(sampler, module, x, output), rtol=1e-4, atol=1e-5)


def test_padding_inside_of_the_forward_is_found_and_other_forwards_have_no_rows():
    class Same(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))

    class Reflected(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"))

    torch.manual_seed(0)
    x = torch.randn(3, 4, 8, 8)
    with torch.no_grad():
        module = Same(4, 6, 3, stride=2)
        sampler = RowSampler.of(module, layer(), module.weight, module.bias, x, module(x))
        assert sampler is not None
        assert sampler.padding == [(0, 1), (0, 1)]
        torch.testing.assert_close(*all_rows(sampler, module, x, module(x)), rtol=1e-4, atol=1e-5)
        module = Reflected(4, 6, 3)
        assert RowSampler.of(module, layer(), module.weight, module.bias, x, module(x)) is None
        module = nn.ConvTranspose2d(4, 6, 3)
        assert RowSampler.of(module, layer(kind="conv_transpose"), module.weight, module.bias, x, module(x)) is None
        module = nn.Conv2d(4, 6, 3, padding="same")
        assert RowSampler.of(module, layer(), module.weight, module.bias, x, module(x)) is not None


def test_positions_are_drawn_for_every_example_and_differ():
    torch.manual_seed(0)
    module, x = nn.Conv2d(1, 1, 1, bias=False), torch.randn(6, 1, 9, 9)
    with torch.no_grad():
        sampler = RowSampler.of(module, layer(), module.weight, None, x, module(x))
    assert sampler is not None
    positions = sampler.positions(x, x, 5, torch.Generator().manual_seed(0))
    assert positions.shape == (6, 5)
    assert all(len(set(row.tolist())) == 5 for row in positions)
    assert len({tuple(row.tolist()) for row in positions}) > 1
    assert (
        sampler.inputs(x, positions).flatten().tolist()
        == x.flatten(2).squeeze(1).gather(1, positions).flatten().tolist()
    )


def test_tokens_of_a_linear_layer_are_rows():
    module, x = nn.Linear(3, 2), torch.randn(4, 5, 3)
    with torch.no_grad():
        sampler = RowSampler.of(module, layer(kind="linear"), module.weight, module.bias, x, module(x))
        assert sampler is not None
        found, wanted = all_rows(sampler, module, x, module(x))
    assert found.shape == (20, 2)
    torch.testing.assert_close(found, wanted)
