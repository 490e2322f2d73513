"""The Plan record: uniform plans, a JSON form, which channels it removes, and how it fits a network."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesbits.graph.trace import trace
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from tests.graph.attention import attention, examples
from tests.graph.heads import heads, inputs
from tests.graph.networks import IMAGES, OWN, Between, traced
from tests.networks import dropping, traced_once


def topology(name: str) -> Topology:
    return traced(name)[2]


def test_a_uniform_plan_names_every_tensor() -> None:
    plan = Plan.uniform(topology("residual"), weights=4, activations=2, residual_bits=16)
    assert plan.bits == {
        **{f"{name}.weight": 4 for name in ("stem", "inner", "outer", "head")},
        "stem.input": 8,
        **{f"{name}.input": 2 for name in ("inner", "outer", "head")},
        "outer_norm.output": 16,
        **{f"{name}.output": 16 for name in ("stem_norm", "inner")},
    }
    assert plan.kept == {}
    assert Plan.uniform(topology("residual")).bits["outer_norm.output"] == 8
    assert "outer_norm.output" not in Plan.uniform(topology("residual"), residual_bits=None).bits
    for name in OWN:
        Plan.uniform(topology(name)).check(topology(name))


@given(
    st.dictionaries(st.text(), st.sampled_from([0, *range(2, 33)])),
    st.dictionaries(st.text(), st.sets(st.integers(0, 99)).map(sorted)),
)
def test_json_round_trip_is_equality(bits: dict[str, int], kept: dict[str, Any]) -> None:
    plan = Plan(bits, kept)
    assert Plan.from_json(plan.to_json()) == plan


def test_saving_and_loading(tmp_path: Path) -> None:
    plan = dropping(topology("residual"), 0.5)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(version=2), "Plan version 2 cannot be read; this library reads 1"),
        (lambda data: data.pop("kept"), r"missing fields \['kept'\]"),
        (lambda data: data.update(bits=[8]), "Plan.bits: expected a JSON object, found list"),
        (lambda data: data["bits"].update(x="8"), r"Plan.bits\['x'\]: expected int, found str"),
        (lambda data: data["bits"].update(x=1), r"Plan.bits\['x'\] is 1; it is an integer from 2 to 32, or 0"),
        (lambda data: data["bits"].update(x=33), r"Plan.bits\['x'\] is 33"),
        (lambda data: data["kept"].update(x=8), r"Plan.kept\['x'\]: expected a list, found int"),
        (lambda data: data["kept"].update(x=[1, 0]), r"Plan.kept\['x'\] is .*increasing indices"),
        (lambda data: data["kept"].update(x=[0, 0]), r"Plan.kept\['x'\] is .*increasing indices"),
        (lambda data: data["kept"].update(x=[-1]), r"Plan.kept\['x'\] is .*increasing indices"),
    ],
)
def test_reading_names_what_is_wrong(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    data = json.loads(dropping(topology("residual"), 0.5).to_json())
    change(data)
    with pytest.raises(ValueError, match=message):
        Plan.from_json(json.dumps(data))


def test_a_channel_of_a_residual_stream_goes_where_all_of_its_producers_drop_it() -> None:
    network = topology("residual")
    stream = network.layer("stem").out_channels
    plan = Plan(Plan.uniform(network).bits, {"stem": (0, 1, 2), "outer": (2, 3, 4)})
    assert plan.removed(network) == {stream[5]}
    plan.check(network)


def test_a_plan_without_channels_drops_them_in_every_layer_that_makes_them() -> None:
    network = topology("residual")
    stream = network.layer("stem").out_channels
    plan = Plan(Plan.uniform(network).bits, {"stem": (0, 1, 2), "inner": (0, 1)}).without(network, {stream[1]})
    assert plan.kept == {"stem": (0, 2), "inner": (0, 1), "outer": (0, 2, 3, 4, 5)}
    assert plan.removed(network) >= {stream[1]}
    plan.check(network)
    depthwise = topology("depthwise")
    gone = set(depthwise.layer("filter").out_channels[3:])
    assert Plan.uniform(depthwise).without(depthwise, gone).kept == {"expand": (0, 1, 2)}


def test_a_depthwise_layer_follows_its_producer() -> None:
    network = topology("depthwise")
    plan = Plan(Plan.uniform(network).bits, {"expand": (0, 1, 2)})
    plan.check(network)
    assert plan.removed(network) == set(network.layer("filter").out_channels[3:])


def test_channels_that_one_layer_makes_twice_go_together() -> None:
    mirrored = traced_once(Mirrored, IMAGES)
    bits = Plan.uniform(mirrored).bits
    assert Plan(bits, {"first": (1, 2, 3, 4, 5)}).removed(mirrored) == frozenset()
    assert Plan(bits, {"first": (1, 2, 3, 4)}).removed(mirrored) == {mirrored.layer("first").out_channels[0]}


class Mirrored(Between):
    """A network that adds a tensor to its mirror image, so that channels of one layer are coupled to each other."""

    def __init__(self) -> None:
        super().__init__(lambda x: x + x.flip(1))


@pytest.mark.parametrize(
    ("bits", "kept", "message"),
    [
        ({"inner.weight": None}, {}, "no width for the tensor 'inner.weight'"),
        ({"inner.input": None}, {}, "no width for the tensor 'inner.input'"),
        ({"other.weight": 8}, {}, "a width for 'other.weight', which is no tensor of the network"),
        ({}, {"other": (0,)}, "names channels of 'other', which is no layer"),
        ({}, {"inner": (0, 4)}, "keeps channel 4 of 'inner', which has 4 of them"),
        ({}, {"head": (0, 1, 2, 3)}, "drops channels of 'head', an output layer"),
        ({}, {"inner": ()}, "removes every channel of 'inner'; at least one has to stay"),
        ({}, {"stem": (), "outer": ()}, "removes every channel of 'stem'"),
        ({"inner.weight": 0}, {}, "gives 'inner.weight' 0 bits, but 'inner' keeps channels"),
        ({"inner.input": 0}, {}, "gives 'inner.input' 0 bits; only a weight can have 0 bits"),
    ],
)
def test_the_first_difference_is_named(bits: dict[str, int | None], kept: dict[str, Any], message: str) -> None:
    network = topology("residual")
    changed = {**Plan.uniform(network).bits, **bits}
    plan = Plan({name: width for name, width in changed.items() if width is not None}, kept)
    with pytest.raises(ValueError, match=message):
        plan.check(network)


def test_channels_that_have_to_stay_are_named_with_the_reason() -> None:
    network = topology("residual")
    stays = tuple(
        replace(group, reason="passes sigmoid") if group.name == "inner" else group for group in network.groups
    )
    plan = Plan(Plan.uniform(network).bits, {"inner": (0, 1, 3)})
    with pytest.raises(ValueError, match="drops channel 2 of 'inner', which cannot be removed: passes sigmoid"):
        plan.check(replace(network, groups=stays))


def test_a_depthwise_layer_is_not_named() -> None:
    network = topology("depthwise")
    with pytest.raises(ValueError, match="names channels of 'filter': a depthwise layer follows its producers"):
        Plan(Plan.uniform(network).bits, {"filter": (0,)}).check(network)


def test_a_weight_can_vanish_where_another_layer_makes_the_same_channels() -> None:
    network = topology("residual")
    plan = Plan({**Plan.uniform(network).bits, "outer.weight": 0}, {"outer": ()})
    plan.check(network)
    assert plan.removed(network) == frozenset()


def test_a_head_goes_with_its_queries_and_keys_and_as_a_whole() -> None:
    network = trace(heads(keys=2), inputs())
    (group,) = network.removable_groups
    plan = Plan.uniform(network)
    smaller = plan.without(network, {group.channels[0]})
    assert smaller.kept == {"value": (4, 5, 6, 7)}
    assert smaller.removed(network) == {group.channels[0]}
    smaller.check(network)
    assert Plan.from_json(smaller.to_json()) == smaller
    for kept, message in (
        ({"value": (3, 4, 5, 6, 7)}, "keeps only one of the channels 0 and 3 of 'value', which are of one head"),
        ({"query": tuple(range(8))}, "'query': its heads go with those of the values"),
        ({"value": ()}, "removes every channel of 'query'"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(plan, kept=kept).check(network)


def test_heads_of_one_layer_are_kept_with_their_queries_and_keys() -> None:
    network = trace(attention(), examples())
    (group,) = network.removable_groups
    plan = Plan.uniform(network).without(network, {group.channels[1]})
    assert plan.kept == {"qkv": tuple(index for index in range(24) if index % 8 < 4)}
    plan.check(network)
    with pytest.raises(ValueError, match="keeps only one of the channels 4 and 20 of 'qkv'"):
        replace(plan, kept={"qkv": (*range(20),)}).check(network)
