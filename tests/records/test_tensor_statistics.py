"""Statistics survive a file, also without errors, and cannot be changed."""

import pytest

from bayesbits.records.tensor_statistics import Histogram, LayerError, TensorStatistics

HISTOGRAM = Histogram("a.weight", 4, -1.0, 1.0, 8, -1.5, 1.5, (0, 3, 1), 0.5, {"4": 20.5, "8": None})
STATISTICS = TensorStatistics(16, (HISTOGRAM,), (LayerError("a", 12.5, None),))


def test_they_are_read_as_they_were_written(tmp_path):
    STATISTICS.save(tmp_path / "statistics.json")
    read = TensorStatistics.load(tmp_path / "statistics.json")
    assert read == STATISTICS
    assert read.tensors[0].signal_to_noise["8"] is None


def test_they_cannot_be_changed():
    with pytest.raises(TypeError, match="cannot be changed"):
        HISTOGRAM.signal_to_noise["2"] = 1.0
