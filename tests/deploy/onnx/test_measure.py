"""Measuring a network: which rows there are, resuming, and the overheads of whole networks; no clock is used."""

import itertools

import pytest

import bayesbits as bb
from bayesbits.deploy.onnx import measure as implementation
from bayesbits.deploy.onnx.measure import measure
from bayesbits.deploy.onnx.runtime import Session
from bayesbits.records.latency_table import LatencyTable
from tests.deploy.onnx.timed import EXAMPLE, NARROW, Network, network

WHOLE = bb.Spec(bits=(4, 8), prune=False)  # one number of channels, and so few rows


def test_layers_of_the_same_shape_share_their_rows_and_are_timed_once(clock, tmp_path):
    table = measure(network(), EXAMPLE, NARROW, path=tmp_path / "table.json")
    first, second, third, depthwise, head = table.layers
    assert [layer.name for layer in table.layers] == ["first", "second", "third", "depthwise", "head"]
    assert second.kernel == third.kernel != first.kernel
    assert second.in_counts == second.out_counts
    assert second.in_counts[0] == 1
    assert second.in_counts[-1] == 40
    assert all(count % 8 == 0 for count in second.in_counts[1:])
    assert first.in_counts == (2,)  # the input of the network cannot be pruned
    assert depthwise.in_counts == ()
    assert head.out_counts == (3,)
    assert [layer.forms for layer in table.layers] == [("codes",)] * 4 + [("numbers",)]
    assert first.emits == "second.input"
    assert head.emits is None
    assert (first.in_elements, first.out_elements) == (2 * 64, 40 * 64)
    assert not table.missing()
    assert len(table.rows) == len(set(itertools.chain(*(layer.rows() for layer in table.layers))))
    assert LatencyTable.load(tmp_path / "table.json") == table
    assert {one.bits for one in table.overheads} == {8}
    assert table.overheads[0].share == pytest.approx(1.0)
    assert 0.4 < table.overheads[1].share < 0.7
    row = first.row("codes", 2, 40)  # without the time of a call
    assert table.rows[row] == pytest.approx(1e3 * (1e-9 * 2 * 64 - 1e-9), rel=1e-6)


def test_measuring_that_is_stopped_goes_on_where_it_was(clock, tmp_path, monkeypatch):
    path, fastest = tmp_path / "table.json", Session.fastest
    whole = measure(network(), EXAMPLE, WHOLE)
    assert [layer.out_counts for layer in whole.layers] == [(40,)] * 4 + [(3,)]
    assert [one.share for one in whole.overheads] == [pytest.approx(1.0)]
    clock.clear()

    def stopping(self, feeds, rounds):
        if len(clock) == 5:
            raise KeyboardInterrupt
        return fastest(self, feeds, rounds)

    monkeypatch.setattr(Session, "fastest", stopping)
    with pytest.raises(KeyboardInterrupt):
        measure(network(), EXAMPLE, WHOLE, path=path)
    part = LatencyTable.load(path)
    assert 0 < len(part.rows) < len(whole.rows)
    assert all(whole.rows[name] == ms for name, ms in part.rows.items())
    with pytest.raises(ValueError, match="not finished"):
        part.check(bb.trace(network(), EXAMPLE))
    monkeypatch.setattr(Session, "fastest", fastest)
    clock.clear()
    assert measure(network(), EXAMPLE, WHOLE, path=path) == whole
    rows = len(whole.rows) - len(part.rows)
    assert len(clock) == 2 * rows + 1 + 2 * len(whole.overheads)
    clock.clear()
    assert measure(network(), EXAMPLE, WHOLE, path=path) == whole
    assert clock == []


def test_a_kill_loses_a_few_seconds_at_most(clock, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(implementation, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(LatencyTable, "save", lambda self, path: saved.append(len(self.rows)))
    table = measure(network(), EXAMPLE, WHOLE, path=tmp_path / "table.json")
    assert saved[: len(table.rows)] == list(range(1, len(table.rows) + 1))


def test_a_table_of_another_machine_or_network_is_not_continued(clock, tmp_path):
    path = tmp_path / "table.json"
    table = measure(network(), EXAMPLE, WHOLE, path=path)
    with pytest.raises(ValueError, match=r"was measured on another machine: .* 1 thread; this is .* 2 threads"):
        measure(network(), EXAMPLE, WHOLE, path=path, threads=2)
    with pytest.raises(ValueError, match="was measured for another network or spec"):
        measure(network(), EXAMPLE, path=path)
    assert LatencyTable.load(path) == table


def test_wrong_options_are_named():
    for options in ({"threads": 0}, {"rounds": 1.5}):
        with pytest.raises(ValueError, match="it is an integer of at least 1"):
            measure(network(), EXAMPLE, NARROW, **options)


@pytest.mark.parametrize("activations", ["dynamic", "float"])
def test_other_activations_than_calibrated_ones_are_refused(activations):
    with pytest.raises(ValueError, match=f"activations is '{activations}', and a latency table has times of static"):
        measure(Network(), EXAMPLE, bb.Spec.for_backend("onnxruntime", activations=activations))
