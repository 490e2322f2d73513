"""Which weights of recurrent layers can be codes, and why others stay in float."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import bayesbits as bb
from bayesbits.graph.trace import trace
from bayesbits.records.topology import RECURRENT, Table, Topology

X = torch.randn(7, 2, 4, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """A recurrent layer in front of a linear one."""

    def __init__(self, cell: nn.Module, features: int = 3) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(features, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0])


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_every_matrix_is_found_with_its_size_and_its_macs(kind: type[nn.RNNBase], gates: int) -> None:
    topology = trace(Network(kind(4, 3)), X)  # type: ignore[call-arg]
    rows = 3 * gates
    assert topology.tables == tuple(
        Table(f"cell.{name}", f"cell.{name}", rows, columns, ("cell",), RECURRENT, 7 * 2 * rows * columns)
        for name, columns in (("weight_ih_l0", 4), ("weight_hh_l0", 3))
    )
    assert topology.tables[0].attribute == "weight_ih_l0"
    assert topology.unsupported == ()
    assert topology.macs == 7 * 2 * (rows * 7 + 3 * 2)
    assert topology.macs_of == {"head": 84, **{table.name: table.macs for table in topology.tables}}
    assert topology.other_parameters == 2 * rows, "the biases"
    assert topology.output_layers == ("head",)
    assert Topology.from_json(topology.to_json()) == topology
    assert f"cell.weight_ih_l0: a table of {rows} x 4 weights, {7 * 2 * rows * 4:,} MACs in float" in str(topology)


def test_layers_and_directions_are_found_in_their_order() -> None:
    cell = nn.GRU(4, 3, num_layers=2, bidirectional=True, bias=False, batch_first=True)
    tables = trace(Network(cell, 6), X).tables
    assert [table.attribute for table in tables] == [name for name, _ in cell.named_parameters()]
    assert [table.columns for table in tables] == [4, 3, 4, 3, 6, 3, 6, 3]
    assert {table.macs // table.elements for table in tables} == {14}


def test_a_layer_that_runs_twice_counts_twice() -> None:
    class Twice(Network):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + super().forward(x[:3])[-1]

    tables = trace(Twice(nn.GRU(4, 3)), X).tables
    assert [table.macs for table in tables] == [(14 + 6) * 9 * 4, (14 + 6) * 9 * 3]


def test_layers_in_front_are_no_outputs_and_keep_their_channels() -> None:
    class Front(Network):
        def __init__(self) -> None:
            super().__init__(nn.LSTM(4, 3))
            self.mix = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(torch.relu(self.mix(x)))[0]

    topology = trace(Front(), X)
    assert topology.output_layers == ()
    assert "LSTM" in (topology.group("mix").reason or "")


def test_a_network_of_recurrent_layers_alone_is_refused_with_their_names() -> None:
    with pytest.raises(ValueError, match=r"nothing to quantize; .*besides: weight_ih_l0 \(recurrent\)"):
        trace(nn.LSTM(4, 3), X)


class OwnForward(nn.LSTM):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(2 * x)


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.ones(9, 4)), nn.Parameter(torch.ones(9, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(1, 2, 3)
        return torch.gru(x, zeros, (self.first, self.second), False, 1, 0.0, False, False, False)


class Shared(nn.Module):
    """Reads a weight of its own layer once more."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.inner(x)[0] + self.inner.weight_hh_l0.sum(),)


def tied_layers() -> nn.Module:
    cell = nn.RNN(4, 4, num_layers=2)
    cell.weight_hh_l1 = cell.weight_hh_l0
    return nn.Sequential(cell)[0]


@pytest.mark.parametrize(
    ("make", "features", "reason"),
    [
        (lambda: OwnForward(4, 3), 3, "OwnForward has a forward of its own"),
        (lambda: nn.LSTM(4, 3, proj_size=2), 2, "it has proj_size, which torch's ONNX exporter cannot write"),
        (Calls, 3, "torch.gru is called by code that is not that of nn.LSTM, nn.GRU or nn.RNN"),
        (Shared, 3, "cell (sum) reads one of them, too"),
        (tied_layers, 4, "two of them are one parameter"),
    ],
)
def test_what_stays_in_float_is_listed_with_the_reason(
    make: Callable[[], nn.Module], features: int, reason: str
) -> None:
    topology = trace(Network(make(), features), X)
    assert topology.tables == ()
    (entry,) = topology.unsupported
    assert entry.what in ("LSTM", "GRU", "RNN")
    assert entry.macs > 0
    assert entry.reason == f"its weights stay in float: {reason}"


def test_weights_that_are_computed_stay_in_float() -> None:
    cell = parametrizations.weight_norm(nn.GRU(4, 3), "weight_hh_l0")
    topology = trace(Network(cell), X)
    assert topology.tables == ()
    assert any("weights stay in float" in entry.reason for entry in topology.unsupported)


def test_a_cell_that_is_called_step_by_step_says_what_to_use_instead() -> None:
    class Steps(Network):
        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros(2, 3)
            for step in x:
                state = self.cell(step, state)
            return self.head(state)

    (reason,) = {entry.reason for entry in trace(Steps(nn.GRUCell(4, 3)), X).unsupported}
    assert reason.endswith("called step by step; the weights of nn.LSTM, nn.GRU and nn.RNN can be quantized")


def test_products_of_two_activations_behind_a_recurrent_layer_name_it() -> None:
    class Attention(Network):
        def forward(self, x: Tensor) -> Tensor:
            states = self.cell(x)[0]
            return self.head(torch.softmax(states @ states.transpose(1, 2), -1) @ states)

    topology = bb.trace(Attention(nn.GRU(4, 3)), X, activation_products=True)
    assert [product.name for product in topology.products] == ["matmul", "matmul_2"]
    assert topology.products[0].sources == ("cell.weight_hh_l0",)
