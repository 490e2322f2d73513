"""Networks that torch.export cannot take are read by a run with hooks, which says so."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import bayesbits as bb
from bayesbits.graph.trace import trace
from bayesbits.records.topology import Activation, Topology
from tests.graph.networks import ROWS, DataDependent

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.export cannot take it")


def test_layers_macs_and_shared_tensors_are_found() -> None:
    topology = trace(DataDependent(), ROWS)
    assert not topology.traced
    assert [(layer.name, layer.macs, layer.calls) for layer in topology.layers] == [
        ("first", 3 * 24, 1),
        ("twin", 3 * 24, 1),
        ("last", 3 * 12, 1),
    ]
    assert topology.activations == (
        Activation("first.input", ("first", "twin"), True),
        Activation("last.input", ("last",), False),
    )


def test_nothing_is_removable_and_the_reason_is_what_export_said() -> None:
    topology = trace(DataDependent(), ROWS)
    assert topology.removable_groups == ()
    assert [channel for group in topology.groups for channel in group.channels] == list(range(topology.channels))
    assert {group.reason for group in topology.groups} == {
        "the network could not be traced, so the paths of its channels are not known"
    }
    (entry,) = topology.unsupported
    assert (entry.what, entry.macs) == ("untraced network", 0)
    assert "Could not guard on data-dependent expression" in entry.reason
    assert len(entry.reason) < 400
    assert Topology.from_json(topology.to_json()) == topology


def test_products_beside_the_layers_are_counted() -> None:
    class Product(DataDependent):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(input=x)
            return self.last(x @ x.T @ x) if x.sum() > 0 else self.last(-x @ x.T @ x)

    topology = trace(Product(), ROWS)
    assert [layer.name for layer in topology.layers] == ["first", "last"]
    assert topology.unsupported[0].macs == 2 * 3 * 3 * 6


def test_layers_inside_of_graphs_in_the_graph_are_not_lost() -> None:
    class Hidden(DataDependent):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.cond(x.sum() > 0, lambda x: self.first(x), lambda x: self.twin(x), (x,)))

    topology = trace(Hidden(), ROWS)
    assert not topology.traced
    assert {layer.name for layer in topology.layers} >= {"first", "last"}


def test_shapes_that_depend_on_the_data() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x[x[:, 0] > 0])

    topology = trace(Chosen(), torch.ones(3, 4))
    assert (topology.traced, topology.layers[0].macs) == (False, 24)


def test_a_warning_says_it_once_and_the_network_says_it_when_asked() -> None:
    with pytest.warns(UserWarning, match="DataDependent: torch.export cannot take it.*cannot be deployed") as caught:
        compressor = bb.attach(DataDependent(), ROWS)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert str(compressor).count("torch.export cannot take it") == 1


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_weights_that_are_computed_stay_in_float(norm: Any) -> None:
    model = DataDependent()
    model.twin = norm(model.twin)
    topology = trace(model, ROWS)
    assert [layer.name for layer in topology.layers] == ["first", "last"]
    found = [(entry.name, entry.what, entry.macs) for entry in topology.unsupported]
    assert found == [("", "untraced network", 0), ("twin", "computed weight", 3 * 24)]
    assert topology.macs == 3 * 24 + 3 * 24 + 3 * 12


def test_where_all_weights_are_computed_the_network_is_refused_with_the_way_out() -> None:
    model = DataDependent()
    for name in ("first", "twin", "last"):
        parametrizations.weight_norm(model.get_submodule(name))
    with pytest.raises(
        ValueError, match=r"nothing of DataDependent can be quantized: first, twin, last: its weight"
    ) as e:
        bb.attach(model, ROWS)
    assert 'remove_parametrizations(module, "weight")' in str(e.value)
    assert "torch.export cannot take it at graph/networks.py:" in str(e.value)
    for name in ("first", "twin", "last"):
        nn.utils.parametrize.remove_parametrizations(model.get_submodule(name), "weight")
    assert len(trace(model, ROWS).layers) == 3


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_listed_with_their_macs_and_a_way_out(kind: Any) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = kind(4, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.head(self.cell(packed)[1][0]) if kind is nn.LSTM else self.head(self.cell(input=packed)[1])

    inputs = torch.randn(2, 5, 4), torch.tensor([5, 3])
    topology = trace(Packed(), inputs)
    whole, cell = topology.unsupported
    rows = 12 if kind is nn.LSTM else 9
    assert (cell.name, cell.what, cell.macs) == ("cell", kind.__name__, (5 + 3) * rows * (4 + 3))
    assert "PackedSequence" in cell.reason
    assert (whole.what, whole.macs) == ("untraced network", 0)
    with pytest.warns(UserWarning, match=rf"of the MACs stay in float .*: cell \({kind.__name__}, 9"):
        compressor = bb.attach(Packed(), inputs, bb.Spec(bits=(4, 8)))
    assert set(compressor.attachment.quantizers) == {"head.weight", "head.input"}
