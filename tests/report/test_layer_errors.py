"""The worst layers come first; charts have both kinds of errors, simulated and deployed."""

from dataclasses import replace

from bayesbits.records.tensor_statistics import LayerError, TensorStatistics
from bayesbits.report.layer_errors import error_charts, layer_numbers, worst_layers
from bayesbits.report.run_data import read_run
from tests.report.runs import write_run, write_statistics

ERRORS = (
    LayerError("a", 30.0, 30.0),
    LayerError("b", 10.0, 9.0),
    LayerError("c", None, 8.0),
    LayerError("d", 20.0, None),
)
DEPLOYED = (LayerError("b", 10.5, 8.5), LayerError("d", 20.5, 7.5), LayerError("not in the simulation", 1.0, 1.0))

NUMBERS = {"a": 1, "b": 2, "c": 3, "d": 4}


def test_numbers_are_those_of_the_picture_and_without_it_those_of_measuring(tmp_path):
    write_run(tmp_path)
    write_statistics(tmp_path)
    run = read_run(tmp_path)
    assert layer_numbers(run) == {"stem": 1, "head": 2}
    assert layer_numbers(replace(run, topology=None)) == {"stem": 1, "head": 2}
    assert layer_numbers(replace(run, topology=None, statistics=None)) == {}


def test_the_worst_layers_come_first_with_their_places():
    assert [(one.place, one.name, one.ratio) for one in worst_layers(ERRORS, NUMBERS, 2)] == [
        (2, "b", 10.0),
        (4, "d", 20.0),
    ]
    assert worst_layers([], NUMBERS) == []


def test_the_charts_have_both_errors_in_running_order():
    alone, together = error_charts(TensorStatistics(16, (), ERRORS[::-1]), NUMBERS)
    assert [one.name for one in alone.shown] == ["simulated"]
    assert list(alone.shown[0].points) == [(1, 30.0), (2, 10.0), (4, 20.0)]
    assert list(together.shown[0].points) == [(1, 30.0), (2, 9.0), (3, 8.0)]
    assert alone.shown[0].notes[1] == "2. b\nsimulated, this layer alone: 10.0 dB"
    assert error_charts(None, {}) == []
    assert error_charts(TensorStatistics(16, (), ()), NUMBERS) == []


def test_what_is_deployed_is_marked_at_the_places_of_the_simulation():
    alone, together = error_charts(TensorStatistics(16, (), ERRORS, deployed=DEPLOYED), NUMBERS)
    assert list(alone.shown[1].points) == [(2, 10.5), (4, 20.5)]
    assert list(together.shown[1].points) == [(2, 8.5), (4, 7.5)]
    assert not together.shown[1].line
    assert together.shown[1].notes[0] == "2. b\ndeployed, all layers up to it: 8.5 dB"
