"""Predicted milliseconds: the formula layer by layer, expectations, monotony, and what a table lacks."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bayesbits as bb
from bayesbits.cost import CostModel
from bayesbits.cost.latency import LatencyModel, lacking, possible_forms
from bayesbits.records.latency_table import FORMS, Overhead
from tests.latency_tables import OVERHEADS, conversion_ms, made_up_table, row_ms


class Network(nn.Module):
    """A chain with a depthwise layer and a residual addition."""

    def __init__(self):
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.second, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x).relu()
        x = x + self.second(self.depthwise(x).relu()).relu()
        return self.head(x.mean((2, 3)))


TOPOLOGY = bb.trace(Network(), torch.zeros(1, 2, 6, 6))
TABLE = made_up_table(TOPOLOGY)
MODEL = CostModel(TOPOLOGY)


def overhead(bits, share):
    """The lines through the made-up overheads."""
    return {8: 0.01 + 0.01 * share, 16: 0.02 + 0.04 * share, 32: 0.03}[bits]


def expected_ms(plan):
    """The prediction, layer by layer: made-up times are linear in both numbers of channels."""
    removed, total = plan.removed(TOPOLOGY), 0.0
    kinds, elements, kept_elements = {8: 0.0, 16: 0.0, 32: 0.0}, 0, 0
    for layer, shape in zip(TOPOLOGY.layers, TABLE.layers, strict=True):
        inputs = sum(channel not in removed for channel in layer.in_channels)
        outputs = sum(channel not in removed for channel in layer.out_channels)
        weight, activation = plan.bits[layer.parameter], plan.bits[layer.activation]
        emits = shape.emits is not None and plan.bits[shape.emits] <= 8
        if weight <= 8 and activation <= 8:
            total += row_ms(shape, "codes" if emits else "numbers", inputs, outputs)
        else:
            total += row_ms(shape, "float", inputs, outputs)
            total += conversion_ms(outputs, len(layer.out_channels)) * emits
            total += conversion_ms(inputs, len(layer.in_channels)) * (activation <= 8)
        kind = 8 if activation <= 8 else 16 if activation <= 24 else 32
        kinds[kind] += shape.in_elements * (layer.name != "first")  # its input is the network's
        elements += shape.in_elements
        kept_elements += 100 * inputs
    inner = sum(kinds.values())
    return total + sum(part / inner * overhead(kind, kept_elements / elements) for kind, part in kinds.items())


def plan_of(widths, gone):
    names = [*TOPOLOGY.weight_tensors, *(activation.name for activation in TOPOLOGY.activations)]
    channels = [channel for group in TOPOLOGY.removable_groups for channel in group.channels]
    removed = [channel for channel, is_gone in zip(channels, gone, strict=False) if is_gone]
    return bb.Plan(dict(zip(names, widths, strict=True))).without(TOPOLOGY, removed)


TENSORS = len(TOPOLOGY.weight_tensors) + len(TOPOLOGY.activations)
PLANS = st.builds(
    plan_of,
    st.lists(st.sampled_from((2, 4, 8, 9, 16, 24, 32)), min_size=TENSORS, max_size=TENSORS),
    st.lists(st.booleans(), min_size=7, max_size=7),
)


@settings(max_examples=60, deadline=None)
@given(PLANS)
def test_the_prediction_is_the_sum_over_layers_plus_the_overhead(plan):
    cost = MODEL.count(plan, TABLE)
    assert cost.latency_ms == pytest.approx(expected_ms(plan), rel=1e-9)
    assert sum(layer.latency_ms for layer in cost.layers) < cost.latency_ms


def test_without_a_table_there_is_no_latency():
    cost = MODEL.count(bb.Plan.uniform(TOPOLOGY))
    assert cost.latency_ms is None
    assert all(layer.latency_ms is None for layer in cost.layers)
    assert "ms predicted" not in str(cost)
    assert f"{MODEL.count(bb.Plan.uniform(TOPOLOGY), TABLE).latency_ms:.4g} ms predicted" in str(
        MODEL.count(bb.Plan.uniform(TOPOLOGY), TABLE)
    )


def test_a_layer_that_is_gone_takes_no_time():
    plan = bb.Plan.uniform(TOPOLOGY, residual_bits=None)
    gone = replace(plan, bits={**plan.bits, "second.weight": 0}, kept={"second": ()})
    layers = {layer.name: layer.latency_ms for layer in MODEL.count(gone, TABLE).layers}
    assert layers["second"] == 0
    assert layers["first"] > 0


def test_calls_of_a_layer_count():
    shapes = tuple(replace(shape, calls=3) if shape.name == "head" else shape for shape in TABLE.layers)
    plan = bb.Plan.uniform(TOPOLOGY)
    once, thrice = (CostModel(TOPOLOGY).count(plan, replace(TABLE, layers=layers)) for layers in (TABLE.layers, shapes))
    assert thrice.layers[-1].latency_ms == pytest.approx(3 * once.layers[-1].latency_ms)


def test_times_between_measured_counts_are_interpolated_and_never_fall():
    shape = TABLE.layers[0]
    assert shape.out_counts == (1, 2, 4, 6, 8)
    times = {1: 0.1, 2: 0.4, 4: 0.2, 6: 0.8, 8: 1.0}  # 4 channels were faster than 2
    rows = dict(TABLE.rows)
    for inputs in shape.in_counts:
        rows |= {shape.row("codes", inputs, count): ms for count, ms in times.items()}
    model = LatencyModel(TOPOLOGY, replace(TABLE, rows=rows))
    names = [*TOPOLOGY.weight_tensors, *(activation.name for activation in TOPOLOGY.activations)]
    over = {name: torch.zeros((), dtype=torch.float64) for name in names}
    found = []
    for count in (0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 9.0):
        counts = torch.full((len(TOPOLOGY.layers),), count, dtype=torch.float64)
        found.append(model.layer_ms(over, counts, counts)[0].item())
    assert found == pytest.approx([0.1, 0.1, 0.25, 0.4, 0.4, 0.4, 0.6, 1.0, 1.0])


def test_the_expected_latency_is_the_mean_over_independent_gates():
    """Widths are independent, and times are linear in the channels of one side of a layer."""
    names = [*TOPOLOGY.weight_tensors, *(activation.name for activation in TOPOLOGY.activations)]
    chances = {name: 0.2 + 0.1 * number for number, name in enumerate(names[:3])}
    mean = 0.0
    for case in range(8):
        wide = {name: bool(case >> number & 1) for number, name in enumerate(chances)}
        weight = 1.0
        for name, chance in chances.items():
            weight *= chance if wide[name] else 1 - chance
        plan = bb.Plan({name: 32 if wide.get(name) else 8 for name in names})
        mean += weight * MODEL.count(plan, TABLE).latency_ms
    zero = torch.zeros((), dtype=torch.float64)
    over = {name: zero + chances.get(name, 0.0) for name in names}
    assert MODEL.latency_ms(TABLE, over, over, {}).item() == pytest.approx(mean, rel=1e-9)


def overheads_of(*points):
    """The overhead at shares of 0, 0.25, 0.5, 0.75 and 1, from measured pairs of a share and milliseconds."""
    table = replace(TABLE, overheads=tuple(Overhead(8, share, 1.0, ms) for share, ms in points))
    model = LatencyModel(TOPOLOGY, table)
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        counts = torch.tensor([share * len(layer.in_channels) for layer in TOPOLOGY.layers], dtype=torch.float64)
        found.append(model.overhead_ms({}, {}, counts).item())
    return pytest.approx(found)


def test_overheads_between_and_below_the_measured_ones():
    assert overheads_of((1.0, 0.5)) == [0.5] * 5
    assert overheads_of((0.5, 0.3), (1.0, 0.4)) == [0.2, 0.25, 0.3, 0.35, 0.4]
    assert overheads_of((0.5, 0.1), (1.0, 0.9)) == [0.0, 0.05, 0.1, 0.5, 0.9]  # never below zero without channels
    assert overheads_of((0.5, 0.9), (1.0, 0.5)) == [0.9, 0.9, 0.9, 0.7, 0.5]  # nor more than with the fewest
    assert overheads_of((0.5, -0.1), (1.0, -0.4)) == [0.0, -0.05, -0.1, -0.25, -0.4]


def test_layers_that_are_faster_together_still_take_time():
    plan = bb.Plan.uniform(TOPOLOGY)
    alone = sum(layer.latency_ms for layer in MODEL.count(plan, TABLE).layers)
    for ms, expected in ((-0.25 * alone, 0.75 * alone), (-5.0, 0.5 * alone)):
        table = replace(TABLE, overheads=(Overhead(8, 1.0, 1.0, ms),))
        assert CostModel(TOPOLOGY).count(plan, table).latency_ms == pytest.approx(expected)


def test_the_model_of_a_table_is_made_once():
    model = CostModel(TOPOLOGY)
    assert model.latency_model(TABLE) is model.latency_model(TABLE)
    assert model.latency_model(replace(TABLE, threads=2)).table.threads == 2
    assert not model.state_dict()


def test_a_table_of_another_network_is_refused():
    other = bb.trace(nn.Linear(4, 4), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="another network"):
        CostModel(other).count(bb.Plan.uniform(other), TABLE)


@pytest.mark.parametrize(
    ("weight", "activation", "behind", "forms"),
    [
        ((2, 4, 8), (8,), (4, 8), ("codes",)),
        ((2, 4, 8), (8,), None, ("numbers",)),
        ((8,), (8,), (8, 16), ("codes", "numbers")),
        ((8, 16), (8,), (8,), ("codes", "float")),
        ((8,), (8, 32), (8,), ("codes", "float")),
        ((2, 4, 8, 16, 32), (2, 4, 8, 16, 32), (2, 32), FORMS),
        ((16, 32), (8,), (8,), ("float",)),
        ((8,), (32,), (8,), ("float",)),
    ],
)
def test_the_forms_that_widths_allow(weight, activation, behind, forms):
    layer = TOPOLOGY.layers[0]
    widths = {layer.parameter: weight, layer.activation: activation}
    emits = None if behind is None else "second.input"
    assert possible_forms(layer, emits, widths | ({} if behind is None else {"second.input": behind})) == forms


def test_what_a_table_lacks():
    names = [*TOPOLOGY.weight_tensors, *(activation.name for activation in TOPOLOGY.activations)]
    narrow, wide = dict.fromkeys(names, (2, 4, 8)), dict.fromkeys(names, (2, 4, 8, 16, 32))
    assert lacking(TABLE, wide, TOPOLOGY) is None
    integers = made_up_table(TOPOLOGY, forms=("codes", "numbers"))
    assert lacking(integers, narrow, TOPOLOGY) is None
    assert lacking(integers, wide, TOPOLOGY) == "no time of 'first' in float"
    bytes_only = replace(TABLE, overheads=OVERHEADS[:2])
    assert lacking(bytes_only, narrow, TOPOLOGY) is None
    assert lacking(bytes_only, wide, TOPOLOGY) == "no overhead of a network with activations of 16 bits"
    assert lacking(TABLE, {}, TOPOLOGY) is None  # everything in float
