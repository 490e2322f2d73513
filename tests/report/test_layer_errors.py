"""The worst layers come first, and the chart has both kinds of errors."""

from bayesbits.records.tensor_statistics import LayerError
from bayesbits.report.layer_errors import error_chart, worst_layers

ERRORS = [
    LayerError("a", 30.0, 30.0),
    LayerError("b", 10.0, 9.0),
    LayerError("c", None, 8.0),
    LayerError("d", 20.0, None),
]


def test_the_worst_layers_come_first():
    assert [error.name for error in worst_layers(ERRORS, 2)] == ["b", "d"]
    assert worst_layers([]) == []


def test_the_chart_has_both_errors_in_running_order():
    alone, together = error_chart(ERRORS).series
    assert list(alone.points) == [(1, 30.0), (2, 10.0), (4, 20.0)]
    assert list(together.points) == [(1, 30.0), (2, 9.0), (3, 8.0)]
    assert alone.notes[1] == "b: 10.0 dB"
    assert error_chart([]) is None
