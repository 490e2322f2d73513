"""Residual additions, and the modules whose outputs are their operands."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.graph.trace import trace
from bayesbits.records.topology import Addition, Topology

X = torch.linspace(-1, 1, 2 * 4 * 8).reshape(2, 4, 8)


class Block(nn.Module):
    """Modules for `forward`, which is a function of the block and its input."""

    def __init__(self, function: Callable[["Block", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv1d(4, 2, 1)
        self.relu, self.dropout, self.pool = nn.ReLU(), nn.Dropout(), nn.MaxPool1d(2, return_indices=True)
        self.unpool, self.bias = nn.MaxUnpool1d(2), nn.Parameter(torch.ones(4, 8))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, x))


def read(function: Callable[[Block, Tensor], Tensor]) -> Topology:
    return trace(Block(function), X)


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (lambda b, x: b.first(x) + b.second(x), ("first", "second")),
        (lambda b, x: b.first(x) + x, ("first", None)),
        (lambda b, x: b.relu(b.first(x)) + b.second(x), ("relu", "second")),
        (lambda b, x: b.dropout(b.first(x)) + b.second(x), ("dropout", "second")),
        (lambda b, x: F.relu(b.first(x)) + b.second(x), (None, "second")),
        (lambda b, x: b.relu(b.first(x)) + b.relu(b.second(x)), (None, None)),
        (lambda b, x: F.dropout(b.first(x), training=False) + b.second(x), ("first", "second")),
    ],
)
def test_operands(function: Callable[[Block, Tensor], Tensor], operands: tuple[str | None, ...]) -> None:
    topology = read(function)
    assert topology.additions == (Addition("add", operands),)
    missing = [entry.reason for entry in topology.unsupported if entry.what == "residual operand"]
    sides = [index for index, operand in enumerate(operands, 1) if operand is None]
    assert [reason.split(" stays")[0] for reason in missing] == [f"operand {side} of the addition" for side in sides]


@pytest.mark.parametrize(
    "function",
    [
        lambda b, x: b.first(x) + b.bias,
        lambda b, x: b.first(x) + 1,
        lambda b, x: (y := b.first(x)) + F.relu(y),
        lambda b, x: b.first(x) + b.second(x)[..., :1],
        lambda b, x: b.first(x + F.relu(x)),
        lambda b, x: b.first(x) * b.second(x),
    ],
)
def test_what_is_no_residual_addition(function: Callable[[Block, Tensor], Tensor]) -> None:
    assert read(function).additions == ()


def test_the_input_of_a_max_pool_whose_indices_are_read() -> None:
    topology = read(lambda b, x: b.unpool(*b.pool(F.relu(b.first(x)))))
    assert topology.additions == (Addition("pool.max_pool", ("first",)),)
    assert topology.pooled_tensors == {"first.output"}
    assert read(lambda b, x: b.pool(b.first(x))[0]).additions == ()
    missing = read(lambda b, x: b.unpool(*b.pool(b.first(x) + b.second(x))))
    assert [addition.operands for addition in missing.additions] == [("first", "second"), (None,)]
    assert missing.unsupported[-1].reason.endswith("the indices of equal values may then differ when deployed")


def test_additions_of_one_module_are_numbered() -> None:
    topology = read(lambda b, x: b.first(x) + b.second(x) + x)
    assert [addition.name for addition in topology.additions] == ["add", "add#2"]


class Stream(nn.Module):
    """Two layers of one kind with an addition; `behind` is what reads the sum in front of the head."""

    def __init__(self, layer: Callable[[], nn.Module], behind: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.behind, self.head = layer(), layer(), behind, nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(self.behind(x + self.second(x)))


class FormulaNorm(nn.Module):
    """RMSNorm as the language models of `transformers` write it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.ReLU())


@pytest.mark.parametrize(
    ("layer", "behind", "normalized"),
    [
        (linear, nn.LayerNorm(8), True),
        (linear, nn.Sequential(nn.Dropout(), nn.RMSNorm(8)), True),
        (linear, FormulaNorm(), True),
        (linear, nn.ReLU(), False),
        (linear, nn.BatchNorm1d(4), False),
        (linear, nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), False),
        (convolution, nn.LayerNorm(8), False),
        (convolution, nn.GroupNorm(2, 4), False),
    ],
)
def test_a_stream_is_normalized_where_a_normalization_is_behind_it_and_no_convolution_in_front(
    layer: Callable[[], nn.Module], behind: nn.Module, normalized: bool
) -> None:
    (addition,) = trace(Stream(layer, behind).eval(), X).additions
    assert addition.operands == ("first", "second")
    assert addition.normalized is normalized


def test_the_sum_of_an_addition_may_be_normalized_behind_another_one_alone() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.norm = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[0](x)
            x = x + self.layers[1](x)
            return self.norm(x + self.layers[2](x))

    assert [addition.normalized for addition in trace(Blocks(), X).additions] == [False, True]
