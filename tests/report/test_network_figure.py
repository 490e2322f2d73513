"""Rows of the picture: bits of the widest that is allowed, names that differ, and the ways beside them."""

import re
from dataclasses import replace

import pytest
import torch

import bayesbits as bb
from bayesbits.recipes.factories import build_model
from bayesbits.report.network_figure import Bits, picture, skyline, widest_bits
from bayesbits.report.network_ways import gutter_width
from bayesbits.report.run_data import read_run
from tests.report.made_runs import ENCODER, network, write_made_run
from tests.report.parsing import Page
from tests.report.runs import write_run, write_statistics


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path)
    write_statistics(tmp_path)
    return read_run(tmp_path)


def test_bits_are_drawn_of_the_widest_that_the_spec_allows(run):
    assert widest_bits(run) == 16  # the plan has more than the 8 of the recipe
    assert widest_bits(replace(run, plan=replace(run.plan, bits={"w": 4}))) == 8
    assert widest_bits(replace(run, plan=replace(run.plan, bits={"w": 32}))) == 8  # float is not a width to draw
    assert widest_bits(replace(run, recipe=None, plan=None)) == 32
    assert Bits("w", "weight", 2, 8).percent == 25
    assert (Bits("w", "weight", 32, 8).percent, Bits("w", "weight", 32, 8).text) == (100, "float")


def test_a_row_has_bits_channels_error_and_figures(run):
    start, stem, head, end = picture(run, run.topology)
    assert [(one.tensor, one.bits) for one in start.bits] == [("stem.input", 8)]
    assert [(one.role, one.bits) for one in stem.bits] == [("weight", 2), ("input", 8)]
    assert (stem.about.kept, stem.about.share) == ((6, 8), pytest.approx(100 * 384 / 11776))
    assert (stem.error.alone, head.error.together) == (12.5, 11.0)
    assert [one.name for one in head.histograms] == ["head.weight", "head.input"]
    assert [name for name, _ in stem.gates] == ["stem.weight"]
    assert end.bits == []


def test_without_a_plan_there_are_names_alone(run):
    rows = picture(replace(run, plan=None, cost=None, statistics=None), run.topology)
    assert [row.short for row in rows] == ["input", "stem", "head", "output"]
    assert all(not row.bits for row in rows)


def test_long_names_are_shortened_and_stay_apart(run, tmp_path):
    long = "a_network_with.a_very_long.name_of_its_first_layer"
    write_run(tmp_path, first=long)
    row = picture(read_run(tmp_path), read_run(tmp_path).topology)[1]
    assert row.name == long
    assert len(row.short) <= 30
    assert "…" in row.short


@pytest.fixture(scope="module")
def resnet():
    topology = bb.trace(build_model("resnet18", {})[0].eval(), torch.zeros(1, 3, 32, 32))
    return topology, bb.Plan.uniform(topology, 4, 8)


def test_ways_are_drawn_in_their_lanes(run, resnet):
    topology, plan = resnet
    rows = picture(replace(run, topology=topology, plan=plan, cost=None, statistics=None), topology)
    width = gutter_width([row.row for row in rows])
    assert width == 9 + 2 * 14 + 9  # two lanes beside the main one
    for row in rows:
        path = "".join(found["d"] for found in Page(row.gutter).all("path"))
        assert ("M9 0V50" in path) == row.row.from_above
        assert len(re.findall(r"V100", path)) == row.row.to_below + len(row.row.passing)
        assert path.count("C") == len(row.row.joins) + len(row.row.begins)
    addition = next(row for row in rows if row.name == "layer1.0.add")
    assert [(one.tensor, one.bits) for one in addition.bits] == [("layer1.0.bn2.output", 8), ("maxpool.output", 8)]
    second = next(row for row in rows if row.name == "layer2.0.conv1")
    assert second.bits[1].shared == "layer2.0.downsample.0"


def test_the_skyline_has_every_layer_of_a_larger_network(run, resnet):
    topology, plan = resnet
    rows = picture(replace(run, topology=topology, plan=plan, cost=None, statistics=None), topology)
    page = Page(skyline(rows))
    tips = [found["data-tip"].splitlines() for found in page.all("g")]
    assert [tip[0] for tip in tips] == [layer.name for layer in topology.layers]
    assert tips[1][1:] == ["weight 4 bits", "input 8 bits"]
    (bar, *_) = page.all("rect", class_="weight")
    assert float(bar["height"]) == 48  # half of the widest, with a little space
    assert skyline(rows[:6]) is None


def test_products_and_tables_have_rows_with_their_bits_and_figures(tmp_path):
    plan = write_made_run(tmp_path, network(ENCODER))
    run = read_run(tmp_path)
    rows = {row.name: row for row in picture(run, run.topology)}
    assert [(one.role, one.bits) for one in rows["words"].bits] == [("weight", plan.bits["words.weight"])]
    product = rows["matmul"]
    assert [(one.tensor, one.bits) for one in product.bits] == [
        (name, plan.bits[name]) for name in ("matmul.left", "matmul.right")
    ]
    assert [one.name for one in product.histograms] == ["matmul.left", "matmul.right"]
    assert [name for name, _ in product.gates] == ["matmul.left", "matmul.right"]
    assert product.error is not None
    assert [row.name for row in rows.values() if row.is_layer] == [layer.name for layer in run.topology.layers]
