"""The Topology record: lookups, totals, and a JSON form that is checked when it is read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bayesbits.records.topology import (
    Activation,
    Addition,
    ChannelGroup,
    Clip,
    Layer,
    Topology,
    Unsupported,
    output_axis,
    remaining_macs,
)


def example() -> Topology:
    shared = {"weight_shape": (2, 2), "groups": 1, "bias": True, "calls": 1, "norm": None, "depthwise": False}
    first = Layer(
        "first",
        "linear",
        "first.weight",
        macs=4,
        activation="first.input",
        in_channels=(0, 1),
        out_channels=(2, 3),
        **shared,
    )
    last = Layer(
        "last",
        "linear",
        "last.weight",
        macs=8,
        activation="last.input",
        in_channels=(2, 3),
        out_channels=(4, 5),
        **shared,
    )
    return Topology(
        layers=(first, last),
        activations=(Activation("first.input", ("first",), True), Activation("last.input", ("last",), False)),
        additions=(Addition("add", ("first", None)),),
        emitted=("last",),
        shared_ranges=(("last.output", "last.input"),),
        groups=(
            ChannelGroup("input", 0, 2, (), ("first",), "is a network input"),
            ChannelGroup("first", 2, 2, ("first",), ("last",), None),
            ChannelGroup("last", 4, 2, ("last",), (), "reaches the network's output"),
        ),
        unsupported=(Unsupported("add", "residual operand", 100, "no module's output is this tensor"),),
        output_layers=("last",),
        other_parameters=0,
        traced=True,
        clips=(Clip("last.output", 0.0, None),),
    )


def test_json_round_trip_is_equality(tmp_path: Path) -> None:
    topology = example()
    assert Topology.from_json(topology.to_json()) == topology
    topology.save(tmp_path / "topology.json")
    assert Topology.load(tmp_path / "topology.json") == topology


def test_lookups_and_totals() -> None:
    topology = example()
    assert topology.layer("last").macs == 8
    assert topology.activation("last.input").consumers == ("last",)
    assert topology.group_of(3) is topology.group("first")
    assert topology.removable_groups == (topology.group("first"),)
    assert (topology.macs, topology.channels) == (112, 6)
    with pytest.raises(KeyError, match=r"no layer is called 'middle'; there are: first, last"):
        topology.layer("middle")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(version=1), "version 1 cannot be read"),
        (lambda data: data.pop("version"), "version None cannot be read"),
        (lambda data: data.pop("groups"), r"missing fields \['groups'\]"),
        (lambda data: data["layers"][1].update(color="red"), r"Topology.layers\[1\].*unknown fields \['color'\]"),
        (lambda data: data["layers"][0].update(macs="4"), r"Topology.layers\[0\].macs: expected int, found str"),
        (lambda data: data["layers"][0].update(in_channels=[0, None]), r"in_channels\[1\]: expected int"),
        (lambda data: data.update(layers={}), "Topology.layers: expected a list"),
        (lambda data: data.update(traced=1), "Topology.traced: expected bool"),
    ],
)
def test_reading_names_what_is_wrong(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    data = json.loads(example().to_json())
    change(data)
    with pytest.raises(ValueError, match=message):
        Topology.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_text_that_is_not_a_topology(text: str) -> None:
    with pytest.raises(ValueError, match="not a Topology"):
        Topology.from_json(text)


def test_a_different_layer_is_a_different_topology() -> None:
    topology = example()
    changed = replace(topology, layers=(replace(topology.layers[0], macs=5), *topology.layers[1:]))
    assert Topology.from_json(changed.to_json()) != topology


def test_as_a_table() -> None:
    assert str(example()).splitlines() == [
        "layer  kind    weight  MACs  removable  channels feed",
        "first  linear  2x2        4     2 of 2  last",
        "last   linear  2x2        8     0 of 2  output",
        "12 MACs in 2 layers",
        "not supported, 100 MACs at 32 bits:",
        "  add: residual operand of 100 MACs: no module's output is this tensor",
    ]


def test_a_table_names_three_readers_and_counts_the_others() -> None:
    first, last = example().layers
    names = ("b", "c", "d", "e")
    readers = tuple(replace(last, name=name, depthwise=name == "b") for name in names)
    group = ChannelGroup("first", 2, 2, ("first",), ("first", *names), None)
    topology = replace(
        example(), layers=(first, *readers), groups=(example().groups[0], group, example().groups[2]), unsupported=()
    )
    lines = str(topology).splitlines()
    assert lines[1].endswith("2 of 2  b, c, d and 1 more")
    assert lines[2].split()[1:3] == ["depthwise", "conv"]
    assert lines[-1] == "36 MACs in 5 layers"


def test_the_axis_of_a_weights_output_channels() -> None:
    assert [output_axis(kind, 1) for kind in ("conv", "linear", "conv_transpose")] == [0, 0, 1]
    assert [output_axis(kind, 4) for kind in ("conv", "conv_transpose")] == [0, 0]


def test_heads_that_are_removed_take_their_part_of_a_product() -> None:
    entry = Unsupported("scores", "attention product", 120, "", slices=(4, 5, 4))
    assert remaining_macs(entry, {5}) == 80
    assert remaining_macs(entry, {4}) == 40
    assert remaining_macs(replace(entry, slices=()), {4, 5}) == 120


def test_a_file_from_before_heads_could_be_removed_is_read() -> None:
    topology = example()
    data = json.loads(topology.to_json())
    for part, field in (("layers", "followers"), ("groups", "block"), ("unsupported", "slices")):
        for entry in data[part]:
            del entry[field]
    assert Topology.from_json(json.dumps(data)) == topology
