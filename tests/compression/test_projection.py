"""The projection onto a budget: within it, never against a rule, a group or a multiple, and nothing more fits."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesbits as bb
from bayesbits.compression.planning import channel_logits, decided_groups
from bayesbits.compression.projection import adopt, project
from bayesbits.compression.smallest_plan import fastest_plan, smallest_plan
from tests.compression.gate_networks import compressors, set_logits
from tests.graph.heads import heads, inputs
from tests.latency_tables import made_up_table
from tests.nn.recurrent import compressed

LIMITS = (
    ("relative_bops",), ("bops",), ("weight_bytes",), ("relative_bops", "weight_bytes"), ("bops", "weight_bytes"),
    ("relative_bops", "bops", "weight_bytes"),
)  # fmt: skip
PARTS = st.lists(st.floats(0, 1), min_size=3, max_size=3)
TIMED = (("latency_ms",), ("latency_ms", "weight_bytes"), ("latency_ms", "relative_bops"))


def budget_between(compressor, names, parts, smallest=None):
    """A budget between the smallest cost and that of the float network; each limit has its part of the way."""
    least = compressor.cost(smallest or smallest_plan(compressor.attachment))
    most = compressor.attachment.cost_model.dense()
    return bb.Budget(**{
        name: max(getattr(least, name), getattr(least, name) ** (1 - part) * getattr(most, name) ** part)
        for name, part in zip(names, parts, strict=False)
    })  # fmt: skip


def present_channels(topology, plan, group):
    removed = plan.removed(topology)
    return [channel for channel in group.channels if channel not in removed]


def check_plan(compressor, plan):
    """Rules, groups and multiples hold."""
    attachment, topology = compressor.attachment, compressor.topology
    plan.check(topology)
    for name, widths in attachment.search_space.widths.items():
        gone = name in topology.weight_tensors and all(plan.kept.get(n) == () for n in topology.weight_tensors[name])
        assert plan.bits[name] in widths or (gone and plan.bits[name] == 0)
    assert set(plan.kept) <= set(attachment.channel_gates)
    for group in topology.groups:
        assert not group.producers or present_channels(topology, plan, group)
    for entry in decided_groups(attachment, channel_logits(attachment)):
        count = len(present_channels(topology, plan, entry.group))
        assert count == entry.allowed(count, compressor.spec.channel_multiple)
        least = max(attachment.search_space.min_channels.get(name, 1) for name in entry.group.producers)
        assert count >= min(least, entry.group.size)


def check_most_bits(compressor, plan, names, most_bits):
    """No width is above the most bits where the tensor has another, and what no limit concerns has the widest."""
    limited = weighed(compressor, names)
    for name, quantizer in compressor.attachment.quantizers.items():
        if quantizer.mode == "learning" and plan.bits[name] > 0:
            widest = max([bits for bits in quantizer.bits if bits <= (most_bits or 32)] or quantizer.bits[:1])
            assert plan.bits[name] <= widest
            if name not in limited:
                assert plan.bits[name] == (quantizer.effective_bits() if most_bits is None else widest)


def weighed(compressor, names):
    """The tensors whose widths these limits depend on."""
    topology = compressor.topology
    return [*topology.weight_tensors] + [a.name for a in topology.activations] * (names != ("weight_bytes",))


def larger_plans(compressor, plan, names, most_bits):
    """Every plan with one width more, up to the most bits, or with the channels that a group gets back next."""
    attachment, topology = compressor.attachment, compressor.topology
    for name in weighed(compressor, names):
        wider = [
            width for width in attachment.search_space.widths[name] if (most_bits or 32) >= width > plan.bits[name] > 0
        ]
        if wider:
            yield replace(plan, bits={**plan.bits, name: wider[0]})
    logits = channel_logits(attachment)
    for entry in decided_groups(attachment, logits):
        present = present_channels(topology, plan, entry.group)
        absent = sorted(
            set(entry.group.channels) - set(present),
            key=lambda channel: -logits[entry.strongest[channel][0]][entry.strongest[channel][1]],
        )
        more = entry.allowed(len(present) + 1, compressor.spec.channel_multiple) - len(present)
        kept = {name: set(channels) for name, channels in plan.kept.items()}
        for channel in absent[:more]:
            name, index = entry.strongest[channel]
            kept[name].add(index)
        if absent and not any(plan.bits[topology.layer(name).parameter] == 0 for name in kept):
            yield replace(plan, kept={name: tuple(sorted(channels)) for name, channels in kept.items()})


def wider_plans(compressor, plan, names):
    """Every plan in which one tensor has a width above the next one: float can be faster than 16 bits."""
    for name in weighed(compressor, names):
        wider = [width for width in compressor.attachment.search_space.widths[name] if width > plan.bits[name] > 0]
        yield from (replace(plan, bits={**plan.bits, name: width}) for width in wider[1:])


@settings(max_examples=60, deadline=None)
@given(compressors(), st.sampled_from(LIMITS), PARTS, st.sampled_from([None, 8, 2]))
def test_every_projection_is_within_the_budget_and_the_rules(compressor, names, parts, most_bits):
    budget = budget_between(compressor, names, parts)
    before = copy.deepcopy(compressor.model.state_dict())
    plan = project(compressor.attachment, budget, most_bits=most_bits)
    assert all(torch.equal(value, before[name]) for name, value in compressor.model.state_dict().items())
    assert budget.allows(compressor.cost(plan))
    check_plan(compressor, plan)
    check_most_bits(compressor, plan, names, most_bits)
    for larger in larger_plans(compressor, plan, names, most_bits):
        assert not budget.allows(compressor.cost(larger))
    for certain in (False, True):
        other = bb.Compressor(copy.deepcopy(compressor.model))
        adopt(other.attachment, plan, certain=certain)
        assert other.plan() == plan


@settings(max_examples=40, deadline=None)
@given(compressors(), st.sampled_from(TIMED), st.floats(0, 1))
def test_every_projection_is_within_the_milliseconds(compressor, names, part):
    attachment, table = compressor.attachment, made_up_table(compressor.topology)
    least = compressor.cost(smallest_plan(attachment), table)
    most = attachment.cost_model.count(bb.Plan.uniform(compressor.topology, 32, 32, 32, residual_bits=None), table)
    between = {
        name: max(getattr(least, name), getattr(least, name) ** (1 - part) * getattr(most, name) ** part)
        for name in names
    }
    budget = bb.Budget(**between, table=table)
    plan = project(attachment, budget)
    assert budget.allows(compressor.cost(plan, table))
    check_plan(compressor, plan)
    for larger in (*larger_plans(compressor, plan, names, None), *wider_plans(compressor, plan, names)):
        assert not budget.allows(compressor.cost(larger, table))
    other = bb.Compressor(copy.deepcopy(compressor.model))
    adopt(other.attachment, plan)
    assert other.plan() == plan


def test_milliseconds_that_only_wider_tensors_reach():
    """In this table float is faster than integers, as it can be for layers of a few channels."""
    compressor = network(bb.Spec())
    table = made_up_table(compressor.topology)
    rows = {name: 0.001 if ", float, " in name else ms for name, ms in table.rows.items()}
    table = replace(table, rows=rows, overheads=tuple(one for one in table.overheads if one.bits != 16))
    table = replace(table, overheads=(*table.overheads, replace(table.overheads[0], bits=16)))
    narrow = compressor.cost(smallest_plan(compressor.attachment), table).latency_ms
    fast = compressor.cost(fastest_plan(compressor.attachment, table), table).latency_ms
    assert fast < 0.8 * narrow
    budget = bb.Budget(latency_ms=1.01 * fast, table=table)
    plan = project(compressor.attachment, budget)
    assert budget.allows(compressor.cost(plan, table))
    with pytest.raises(bb.BudgetError):
        project(compressor.attachment, bb.Budget(latency_ms=0.99 * fast, table=table))


def network(spec=None, scale=3.0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 4),
    )  # fmt: skip
    compressor = bb.attach(model, torch.zeros(1, 1, 8, 8), spec or bb.Spec(bits=(2, 4, 8)))
    set_logits(compressor, scale, 1)
    return compressor


def test_gates_close_from_the_smallest_logit_on():
    compressor = network(scale=0.0)
    gates = compressor.attachment.channel_gates
    gates["0"].gates.logits.data = torch.arange(8.0)
    gates["2"].gates.logits.data = torch.arange(8.0) + 1.5
    for quantizer in compressor.attachment.quantizers.values():
        quantizer.gates.logits.data.fill_(20.0)
    whole = compressor.cost().relative_bops
    plan = compressor.project(bb.Budget(relative_bops=0.6 * whole))
    assert set(plan.bits.values()) == {8}
    lowest = [min(plan.kept[name]) + offset for name, offset in (("0", 0), ("2", 1.5))]
    assert plan.kept["0"] == tuple(range(min(plan.kept["0"]), 8))
    assert abs(lowest[0] - lowest[1]) <= 1.5  # the two layers are cut at the same logit, but for what still fits


def test_a_gate_with_a_large_logit_is_not_closed_for_a_small_excess():
    compressor = network(scale=0.0)
    for quantizer in compressor.attachment.quantizers.values():
        quantizer.gates.logits.data.fill_(6.0)
    for gate in compressor.attachment.channel_gates.values():
        gate.gates.logits.data = torch.tensor([5.0] * 7 + [-0.5])
    cost = compressor.cost().relative_bops
    plan = compressor.project(bb.Budget(relative_bops=0.99 * cost))
    assert set(plan.bits.values()) == {8}
    assert sum(len(kept) for kept in plan.kept.values()) < 16
    assert all(len(kept) == 7 for kept in plan.kept.values())


def test_room_that_is_left_is_used():
    compressor = network(scale=0.0)
    attachment = compressor.attachment
    for quantizer in attachment.quantizers.values():
        quantizer.gates.logits.data.fill_(-5.0)
    attachment.quantizers["2.weight"].gates.logits.data.fill_(-3.0)
    closed = compressor.cost()
    budget = bb.Budget(relative_bops=3 * closed.relative_bops)
    plan = compressor.project(budget)
    assert plan.bits["2.weight"] == 8  # its logits are the largest of those that are closed
    assert 2.7 * closed.relative_bops < compressor.cost().relative_bops <= budget.relative_bops
    assert compressor.plan() == plan


def test_a_budget_on_bytes_leaves_activations_alone():
    compressor = network()
    before = compressor.plan()
    plan = compressor.project(bb.Budget(weight_bytes=200))
    assert compressor.cost().weight_bytes <= 200
    assert {name: plan.bits[name] for name in ("0.input", "2.input", "5.input")} == {
        name: before.bits[name] for name in ("0.input", "2.input", "5.input")
    }


def test_what_is_fixed_stays():
    compressor = network()
    attachment = compressor.attachment
    attachment.quantizers["2.weight"].fix(8)
    attachment.channel_gates["0"].fix([True] * 5 + [False] * 3)
    plan = compressor.project(bb.Budget(relative_bops=0.5))
    assert plan.bits["2.weight"] == 8
    assert plan.kept["0"] == (0, 1, 2, 3, 4)
    assert compressor.cost().relative_bops <= 0.5


def test_gates_that_are_certain_have_no_noise():
    compressor = network()
    compressor.calibrate([torch.randn(16, 1, 8, 8)])
    plan = compressor.project(bb.Budget(relative_bops=1.0), certain=True)
    x = torch.randn(4, 1, 8, 8)
    compressor.model.train()
    outputs = [compressor.model(x) for _ in range(5)]
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    assert torch.equal(compressor.model.eval()(x), outputs[0])
    assert compressor.plan() == plan


def test_an_unreachable_budget_changes_nothing():
    compressor = network()
    before = compressor.plan()
    with pytest.raises(bb.BudgetError, match="cannot be reached"):
        compressor.project(bb.Budget(weight_bytes=10))
    assert compressor.plan() == before


def test_a_budget_of_bytes_narrows_tables_and_one_of_bit_operations_does_not():
    tokens = torch.arange(6).reshape(2, 3)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Linear(4, 3))
    compressor = bb.attach(model, tokens, bb.Spec(bits=(2, 4, 8), prune=False))
    compressor.calibrate([tokens])
    assert compressor.project(bb.Budget(relative_bops=1.0)).bits["0.weight"] == 8
    plan = compressor.project(bb.Budget(weight_bytes=140))  # 100 of 4 bits, a layer of 12 weights and 3 biases
    assert plan.bits["0.weight"] == 4
    assert compressor.cost().weight_bytes <= 140
    with pytest.raises(bb.BudgetError, match=r"Most of it is 0 \(77%: 2 bits\)"):
        compressor.project(bb.Budget(weight_bytes=20))


def test_a_budget_of_bit_operations_or_bytes_narrows_the_weights_of_recurrent_layers():
    compressor = compressed(torch.nn.GRU, spec={"bits": (2, 4, 8), "prune": False})
    most = compressor.cost().relative_bops
    rest = sum(entry.bops for entry in compressor.cost().layers) / compressor.cost().bops
    for part in (rest + 0.9 * (1 - rest), rest + 0.3 * (1 - rest)):
        plan = compressor.project(bb.Budget(relative_bops=part * most))
        assert compressor.cost(plan).relative_bops <= part * most
        assert min(plan.bits[name] for name in compressor.topology.table_tensors) < 8
    smaller = compressed(torch.nn.GRU, spec={"bits": (2, 4, 8), "prune": False})
    plan = smaller.project(bb.Budget(weight_bytes=0.8 * smaller.cost().weight_bytes))
    assert min(plan.bits[name] for name in smaller.topology.table_tensors) < 8
    with pytest.raises(bb.BudgetError, match=r"Most of it is cell.weight_hh_l0 \(\d+%: 2 bits\), cell.weight_ih_l0"):
        smaller.project(bb.Budget(relative_bops=0.1))


def test_a_budget_removes_whole_heads_those_with_the_smallest_logits_first():
    compressor = bb.attach(heads(), inputs(), bb.Spec(bits=(8,), activation_products=True))
    compressor.calibrate([inputs()])
    logits = compressor.attachment.channel_gates["value"].gates.logits
    with torch.no_grad():
        logits.copy_(torch.tensor([3.0, 5.0, 2.0, 4.0]))
    half = 0.55 * compressor.cost().relative_bops
    plan = project(compressor.attachment, bb.Budget(relative_bops=half))
    assert plan.kept == {"value": (4, 5, 6, 7, 12, 13, 14, 15)}
    assert compressor.cost(plan).relative_bops <= half
    adopt(compressor.attachment, plan)
    assert compressor.plan() == plan
    assert smallest_plan(compressor.attachment).kept == {"value": (4, 5, 6, 7)}  # the head with the largest logit
