"""The layers in front of float operations, where their outputs are quantized, and the tensors that share a range."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.graph.trace import trace
from bayesbits.records.topology import Clip, Topology

X = torch.linspace(-1, 1, 2 * 4 * 8 * 8).reshape(2, 4, 8, 8)


class Block(nn.Module):
    """Modules for `forward`, which is a function of the block and its input; a convolution reads what it returns."""

    def __init__(self, function: Callable[["Block", Tensor], Tensor], inputs: int = 4) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.norm, self.other, self.relu, self.silu = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.ReLU(), nn.SiLU()
        self.up, self.pool = nn.ConvTranspose2d(4, 4, 1), nn.MaxPool2d(2)
        self.head = nn.Conv2d(inputs, 2, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, x))


def read(function: Callable[[Block, Tensor], Tensor], inputs: int = 4) -> Topology:
    return trace(Block(function, inputs).eval(), X)


@pytest.mark.parametrize(
    ("function", "emitted"),
    [
        (lambda b, x: b.silu(b.first(x)), ("first",)),
        (lambda b, x: F.silu(b.norm(b.first(x))), ("norm",)),
        (lambda b, x: b.other(b.relu(b.norm(b.first(x)))), ("relu",)),
        (lambda b, x: b.other(F.relu(b.first(x))), ("first",)),
        (lambda b, x: F.gelu(b.pool(b.relu(b.first(x)))), ("pool",)),
        (lambda b, x: (y := b.relu(b.first(x))) * y.mean((2, 3), keepdim=True), ("relu",)),
        (lambda b, x: b.silu(b.first(x)) + b.silu(b.second(x)), ("first", "second")),
        # The input quantizer of the next layer, or the quantizer of an operand, is fused into the layer.
        (lambda b, x: b.relu(b.norm(b.first(x))), ()),
        (lambda b, x: b.pool(F.relu(b.first(x))), ()),
        (lambda b, x: b.first(x) + b.second(x), ()),
        (lambda b, x: b.relu(b.first(x)) + b.norm(b.second(x)), ()),
        # No integer kernel, or several calls of one layer.
        (lambda b, x: b.silu(b.up(x)), ()),
        (lambda b, x: b.silu(b.first(b.silu(b.first(x)))), ()),
    ],
)
def test_layers_in_front_of_float_operations(
    function: Callable[[Block, Tensor], Tensor], emitted: tuple[str, ...]
) -> None:
    assert read(function).emitted == emitted


@pytest.mark.parametrize(
    ("function", "emitted"),
    [
        (lambda b, x: torch.cat([b.relu(b.first(x)), b.second(x)], 1), ()),
        (lambda b, x: F.relu(torch.cat([b.first(x), b.norm(b.second(x))], 1)), ()),
        (lambda b, x: torch.cat([b.first(x), x], 1), ("first",)),
        (lambda b, x: torch.cat([b.first(x), b.silu(b.second(x))], 1), ("first", "second")),
        (lambda b, x: torch.cat([y := b.relu(b.first(x)), b.second(y)], 1), ("relu", "second")),
        (lambda b, x: F.silu(torch.cat([b.first(x), b.second(x)], 1)), ("first", "second")),
    ],
)
def test_parts_of_a_concatenation(function: Callable[[Block, Tensor], Tensor], emitted: tuple[str, ...]) -> None:
    assert read(function, inputs=8).emitted == emitted


def test_what_the_network_returns_keeps_its_precision() -> None:
    class Returning(Block):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.first(x)
            return y, self.head(F.silu(y))

    assert trace(Returning(lambda b, x: x).eval(), X).emitted == ()
    last = nn.Sequential(nn.Conv2d(4, 4, 1), nn.SiLU())
    assert trace(last, X).emitted == ()


def test_tensors_with_the_same_values_share_a_range() -> None:
    both = read(lambda b, x: torch.cat([y := b.relu(b.first(x)), b.second(y)], 1), inputs=8)
    assert both.shared_ranges == (("head.input", "relu.output", "second.input", "second.output"),)
    alone = read(lambda b, x: b.silu(b.first(x)))
    assert alone.shared_ranges == ()
    # One part is no quantized tensor, so that the whole is rounded anyway.
    mixed = read(lambda b, x: torch.cat([b.first(x), b.silu(b.second(x))], 1), inputs=8)
    assert mixed.shared_ranges == ()
    # Operands of additions alone are left as they were.
    added = read(lambda b, x: b.third(y := b.relu(b.first(x))) + y)
    assert added.shared_ranges == ()


@pytest.mark.parametrize(
    ("function", "clip"),
    [
        (lambda b, x: b.other(F.relu(b.first(x))), Clip("first.output", 0.0, None)),
        (lambda b, x: F.gelu(F.relu6(b.pool(F.hardtanh(b.first(x), -1.0, 9.0)))), Clip("pool.output", 0.0, 6.0)),
        (lambda b, x: F.gelu(b.first(x).clamp(max=2.0)), Clip("first.output", None, 2.0)),
        (lambda b, x: b.other(b.relu(b.first(x))), None),  # the quantizer stands behind the module
        (lambda b, x: b.other(F.relu(y := b.first(x))) * y, None),  # others read what it takes away
        (lambda b, x: F.gelu(b.first(x).clamp(min=0.5)), None),  # no quantizer has such a range
    ],
)
def test_functions_behind_a_quantizer_that_clip(function: Callable[[Block, Tensor], Tensor], clip: Clip | None) -> None:
    assert read(function).clips == (() if clip is None else (clip,))


def test_parts_of_parts_share_a_range_through_functions_that_clip() -> None:
    def units(b: Block, x: Tensor) -> Tensor:
        kept, changed = F.relu(b.norm(b.first(x))).chunk(2, 1)
        y = torch.cat([kept, F.relu(b.second(torch.cat([changed, changed], 1)))], 1)
        return y.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2)

    found = read(units, inputs=6)
    assert found.shared_ranges == (("head.input", "norm.output", "second.input", "second.output"),)
    # A function that clips what was not clipped before makes other values.
    other = read(lambda b, x: torch.cat([y := b.first(x), F.relu(b.second(y)), F.relu(y)], 1), inputs=12)
    assert other.shared_ranges == (("first.output", "second.input"),)
