"""Statistics are written to the run's folder; a network that cannot be measured is said, and loses nothing."""

import torch
from torch import nn

import bayesbits as bb
from bayesbits.recipes import statistics
from bayesbits.recipes.data import Loaders
from bayesbits.records.tensor_statistics import TensorStatistics


def fixed_network():
    model = nn.Sequential(nn.Linear(4, 2))
    compressor = bb.attach(model, torch.randn(1, 4))
    compressor.calibrate([torch.randn(8, 4)])
    compressor.fix(compressor.plan())
    return compressor


def loaders(size):
    batches = [(torch.randn(10, size), torch.zeros(10)) for _ in range(3)]
    return Loaders(batches, None, batches, batches[0][0], None)


def test_the_first_test_examples_are_measured(tmp_path):
    said = []
    statistics.write_statistics(fixed_network(), loaders(4), tmp_path, said.append)
    found = TensorStatistics.load(tmp_path / "statistics.json")
    assert found.examples == statistics.EXAMPLES == 16
    assert [layer.name for layer in found.layers] == ["0"]
    assert said == []


def test_a_failure_is_said_and_older_statistics_go(tmp_path):
    (tmp_path / "statistics.json").write_text("old")
    said = []
    statistics.write_statistics(fixed_network(), loaders(5), tmp_path, said.append)
    assert not (tmp_path / "statistics.json").exists()
    assert "could not be measured (RuntimeError" in said[0]
