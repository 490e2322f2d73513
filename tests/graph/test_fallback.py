"""Networks that torch.export cannot take are read by a run with hooks, which says so."""

from bayesbits.graph.trace import trace
from bayesbits.topology import Activation, Topology
from tests.graph.networks import ROWS, DataDependent


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
        "the network could not be traced, so the ways of its channels are not known"
    }
    (entry,) = topology.unsupported
    assert "Could not guard on data-dependent expression" in entry.reason
    assert len(entry.reason) < 400
    assert Topology.from_json(topology.to_json()) == topology
