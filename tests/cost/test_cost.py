"""The cost of a network as numbers and as a table."""

import pytest

from bayesbits.cost import Cost, CostModel, LayerCost
from bayesbits.records.plan import Plan
from tests.networks import zoo

LAYERS = (
    LayerCost("stem", 1000, 4, 8, 3, 16, bops=32_000, share=60.0, weight_bytes=120, parameters=200),
    LayerCost("head", 200, 8, 8, 16, 10, bops=12_800, share=24.0, weight_bytes=90, parameters=170),
)


def test_the_table_is_aligned_and_complete() -> None:
    network = zoo("lenet5")
    text = str(CostModel(network).count(Plan.uniform(network)))
    head, *rows, total, summary = text.splitlines()
    assert [row.split()[0] for row in rows] == [layer.name for layer in network.layers]
    assert len({len(line) for line in (head, *rows, total)}) == 1
    assert total.split() == ["total", "4,267,008", "100.00", "583,880", "582,026"]
    assert summary == "273,088,512 BOPs, 6.25% of 32 x 32 bits (6.25% in the paper's convention)"
    assert rows[0].split()[2:6] == ["8", "8", "1", "32"]
    assert float(rows[1].split()[6]) == pytest.approx(100 * 64 * 32 * 25 * 64 / 4_267_008, abs=0.01)


def test_what_stays_in_float_has_a_row() -> None:
    cost = Cost(1_250, 96_000, 7.5, 8.0, weight_bytes=250, parameters=380, layers=LAYERS)
    assert cost.unsupported_macs == 50
    assert str(cost).splitlines() == [
        "layer     MACs  weight bits  activation bits  in  out  BOPs %  bytes  parameters",
        "stem     1,000            4                8   3   16   60.00    120         200",
        "head       200            8                8  16   10   24.00     90         170",
        "(float)     50           32               32            16.00     40          10",
        "total    1,250                                         100.00    250         380",
        "96,000 BOPs, 7.5% of 32 x 32 bits (8% in the paper's convention)",
    ]


def test_without_it_there_is_none() -> None:
    cost = Cost(1_200, 44_800, 3.6, 3.6, weight_bytes=210, parameters=370, layers=LAYERS)
    assert cost.unsupported_macs == 0
    assert "(float)" not in str(cost)
