"""The latency table of a recipe, of a network of the zoo and of one's own, on the command line; no clock is used."""

import pytest

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import Session
from tests.cli.invoke import bayesbits

OWN = """
import torch
from torch import nn

def network():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
"""


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(Session, "fastest", lambda self, feeds, rounds: 1e-3)


def test_the_network_and_the_spec_of_a_recipe_are_measured(here):
    settings = ["--set", "spec.bits=[4, 8]", "--set", "spec.channel_multiple=8"]
    shown = bayesbits("measure", "digits-lenet5", *settings, "--output", "table.json")
    table = bb.LatencyTable.load(here / "table.json")
    assert [layer.name for layer in table.layers] == ["features.0", "features.3", "classifier.1", "classifier.3"]
    assert table.kinds() == (8,)
    assert f"4 layers, {len(table.rows)} rows on {table.cpu}" in shown.stdout.replace("\n", " ")
    assert "--latency-table table.json" in shown.stdout.replace("\n", " ")
    before = (here / "table.json").read_bytes()
    bayesbits("measure", "digits-lenet5", *settings, "--output", "table.json")
    assert (here / "table.json").read_bytes() == before
    failed = bayesbits("measure", "digits-lenet5", "--output", "table.json", "--threads", "2", *settings, code=1)
    assert "table.json was measured on another machine" in failed.stderr.replace("\n", " ")


def test_a_network_of_ones_own_is_measured(here):
    (here / "measured_here.py").write_text(OWN)
    options = ["--model", "measured_here:network", "--input-shape", "6", "--set", "spec.bits=[4, 8]", "-o", "own.json"]
    bayesbits("measure", *options, "--threads", "2")
    table = bb.LatencyTable.load(here / "own.json")
    assert [layer.weight_shape for layer in table.layers] == [(8, 6), (2, 8)]
    assert table.threads == 2


def test_one_network_is_named():
    for arguments in ([], ["lenet5", "--model", "mine:network"]):
        assert "give a recipe or a network of the zoo" in bayesbits("measure", *arguments, code=2).output
    assert "nosuch" in bayesbits("measure", "nosuch", code=1).stderr
