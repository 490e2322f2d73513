"""The costs of all widths as sums of tables: those that are counted."""

import random

import numpy as np
import pytest

import bayesbits as bb
from bayesbits.compression.limit_terms import LimitTerms
from bayesbits.compression.planning import make_plan
from bayesbits.cost.latency import MOST_SAVED
from tests.compression.limit_networks import compressor, random_table
from tests.nn.recurrent import compressed


@pytest.mark.parametrize(("number", "kept"), [(0, {}), (1, {}), (1, {"first": (0, 2)})])
def test_the_sums_are_the_counted_costs(number, kept):
    attachment = compressor(number).attachment
    table = random_table(attachment, number)
    widths = attachment.search_space.widths
    narrowest = make_plan(attachment, {name: own[0] for name, own in widths.items()}, kept)
    budget = bb.Budget(latency_ms=0.2, table=table, relative_bops=3.0, bops=500, weight_bytes=80)
    terms = LimitTerms.of(attachment, budget, narrowest)
    choose = random.Random(0)
    for _ in range(20):
        chosen = {name: choose.randrange(len(own)) for name, own in terms.choices.items()}
        bits = {name: terms.choices[name][place] for name, place in chosen.items()}
        cost = attachment.cost_model.count(make_plan(attachment, bits, kept), table)
        found = dict(zip(("relative_bops", "bops", "weight_bytes", "ms", "half_ms"), terms.costs(chosen), strict=True))
        assert found["relative_bops"] == pytest.approx(cost.relative_bops / 3.0)
        assert found["bops"] == pytest.approx(cost.bops / 500)
        assert found["weight_bytes"] == pytest.approx(cost.weight_bytes / 80)
        assert max(found["ms"], found["half_ms"]) == pytest.approx(cost.latency_ms / 0.2)
        layers = sum(layer.latency_ms for layer in cost.layers)
        assert found["half_ms"] == pytest.approx((1 - MOST_SAVED) * layers / 0.2)


def test_one_width_of_each_kind_is_a_choice():
    attachment = compressor(1).attachment
    budget = bb.Budget(latency_ms=1.0, table=random_table(attachment, 0))
    terms = LimitTerms.of(attachment, budget, bb.Plan.uniform(attachment.topology, 8, 8))
    assert terms.choices["middle.weight"] == (2, 16, 32)
    assert terms.choices["first.weight"] == (8,)
    assert np.array_equal(terms.rest, [0.0, 0.0])


def test_weights_of_recurrent_layers_count_at_their_narrowest_width():
    attachment = compressed(spec={"bits": (2, 8), "prune": False}).attachment
    budget = bb.Budget(relative_bops=3.0, bops=500, weight_bytes=80)
    terms = LimitTerms.of(attachment, budget, bb.Plan.uniform(attachment.topology, 8, 8))
    assert terms.choices["cell.weight_hh_l0"] == (2,)
    bits = {name: own[0] for name, own in terms.choices.items()}
    cost = attachment.cost_model.count(make_plan(attachment, bits, {}))
    expected = [cost.relative_bops / 3.0, cost.bops / 500, cost.weight_bytes / 80]
    assert terms.costs(dict.fromkeys(terms.choices, 0)) == pytest.approx(expected)
