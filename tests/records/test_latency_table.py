"""The latency table: its file, what is missing in it, and which networks it belongs to."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.records.latency_table import KINDS, kind_of
from tests.latency_tables import made_up_table


def topology(width=8, more=()):
    model = nn.Sequential(nn.Conv2d(2, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(width * 16, 4), *more)
    return bb.trace(model, torch.zeros(1, 2, 6, 6))


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = made_up_table(topology())
    table.save(tmp_path / "table.json")
    assert bb.LatencyTable.load(tmp_path / "table.json") == table


def test_a_table_of_another_version_is_refused(tmp_path):
    table = replace(made_up_table(topology()), version=0)
    table.save(tmp_path / "table.json")
    with pytest.raises(ValueError, match="LatencyTable version 0 cannot be read"):
        bb.LatencyTable.load(tmp_path / "table.json")


def test_rows_that_are_not_measured_are_missing_once():
    table = made_up_table(topology())
    shape = table.layers[0]
    gone = [shape.row("codes", shape.in_counts[0], count) for count in shape.out_counts[:2]]
    part = replace(table, rows={name: ms for name, ms in table.rows.items() if name not in gone})
    assert table.missing() == []
    assert part.missing() == gone
    twice = replace(part, layers=(shape, *table.layers))
    assert twice.missing() == gone
    for unfinished in (part, replace(table, overheads=())):
        with pytest.raises(ValueError, match=r"not finished.*bayesbits measure"):
            unfinished.check(topology())


def test_a_layer_that_is_always_in_float_needs_no_quantizers():
    shape = replace(made_up_table(topology()).layers[0], forms=("float",))
    assert not any("quantize" in row for row in shape.rows())
    both = replace(shape, forms=("codes", "float"))
    assert [row for row in both.rows() if "quantize" in row] == [
        "quantize 1 elements", "quantize 800 elements", "dequantize 1 elements", "dequantize 200 elements",
    ]  # fmt: skip
    images = [row for row in replace(both, image=True).rows() if "images" in row]
    assert images == ["quantize 800 elements of images", "dequantize 200 elements of images"]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (topology(12), r"its '0' has a weight of 8x2x3x3 and .* here it is 12x2x3x3"),
        (topology(more=[nn.ReLU(), nn.Linear(4, 4)]), "it has no layer '5'"),
    ],
)
def test_a_table_of_another_network_is_refused(other, problem):
    table = made_up_table(topology())
    table.check(topology())
    with pytest.raises(ValueError, match=f"of another network.*{problem}.*bayesbits measure"):
        table.check(other)


def test_a_table_with_more_layers_is_refused():
    with pytest.raises(ValueError, match="which has the layer '5' too"):
        made_up_table(topology(more=[nn.ReLU(), nn.Linear(4, 4)])).check(topology())


def test_the_same_layers_on_larger_images_are_another_network():
    model = nn.Conv2d(2, 4, 3)
    table = made_up_table(bb.trace(model, torch.zeros(1, 2, 6, 6)))
    with pytest.raises(ValueError, match="another network"):
        table.check(bb.trace(model, torch.zeros(1, 2, 12, 12)))


def test_the_kind_of_an_activation():
    assert [kind_of(bits) for bits in (2, 8, 9, 16, 24, 25, 32)] == [8, 8, 16, 16, 16, 32, 32]
    assert tuple(map(kind_of, KINDS)) == KINDS
    assert made_up_table(topology()).kinds() == (8, 16, 32)


def test_the_machine_in_words():
    table = made_up_table(topology())
    assert table.machine == "a made-up processor, a runtime 1.0, 1 thread"
    assert replace(table, threads=4).machine.endswith("4 threads")
