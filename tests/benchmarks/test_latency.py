"""The rows of the table of latencies: predicted, measured, and their difference; plans of every variant."""

from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import Session
from benchmarks import latency
from tests.networks import zoo


def test_rows_have_both_times_and_the_last_ones_the_errors(monkeypatch):
    monkeypatch.setattr(Session, "fastest", lambda self, feeds, rounds: 1e-3)
    rows = latency.latency(smoke=True)
    assert [row["plan"] for row in rows[:-2]] == [
        title for title, variant in latency.VARIANTS.items() if max(variant.widths) <= 8
    ]
    for row in rows[:-2]:
        assert row["measured ms"] == 1.0
        assert row["error %"] == round(100 * (row["predicted ms"] - 1), 1)
    assert rows[-2]["network"] == "median error %"
    assert rows[-1]["error %"] == max(abs(row["error %"]) for row in rows[:-2])


def test_a_network_without_its_library_is_left_out(monkeypatch):
    def missing() -> nn.Module:
        raise ImportError("No module named 'elsewhere'")

    small = {"foreign": latency.Network(missing, (1, 4), latency.BYTES)}
    monkeypatch.setattr(latency, "SMALL", small)
    assert latency.latency(smoke=True) == [{"network": "foreign", "left out": "No module named 'elsewhere'"}]


def test_plans_keep_multiples_of_eight_and_what_is_fixed():
    topology = zoo("lenet5")
    for variant in latency.VARIANTS.values():
        plan = latency.random_plan(topology, variant)
        plan.check(topology)
        assert all(len(kept) % 8 == 0 for kept in plan.kept.values())
        assert plan.bits["features.0.input"] == 8
        assert set(plan.bits.values()) <= {8, *variant.widths}
    uneven = latency.random_plan(topology, latency.VARIANTS["2, 4, 8 mixed, 0 to 80% gone by group"])
    assert len({len(kept) / len(topology.layer(name).out_channels) for name, kept in uneven.kept.items()}) > 1
    assert bb.Plan.from_json(uneven.to_json()) == uneven
