"""The report of the methods that choose the rounding of weights."""

import bayesbits as bb
from bayesbits.baselines.layerwise import SkippedLayer
from bayesbits.baselines.rounding_report import RoundedUnit, RoundingReport


def test_a_report_has_a_line_for_every_layer_and_block_and_for_every_layer_that_was_skipped() -> None:
    layer = RoundedUnit("stem", 12, 3, 0.5, 0.25, ("stem",))
    block = RoundedUnit("block", 20, 4, 2.0, 1.0, ("block.a", "block.b"))
    report = RoundingReport(bb.Plan({"stem.weight": 4}), (layer, block), (SkippedLayer("head", "its weight is tied"),))
    assert str(report).splitlines() == [
        "stem: 3 of 12 codes moved, error 0.5 -> 0.25",
        "block: 4 of 20 codes of 2 layers moved, error 2 -> 1",
        "head is left as it was: its weight is tied",
    ]
