"""The run that the benchmark of the page is about has everything that a page shows."""

from bayesbits.report import read_run
from benchmarks.report import SHAPES, report, write_run


def test_the_run_is_whole(tmp_path):
    assert write_run(tmp_path, "lenet5", SHAPES["lenet5"]) == 4
    run = read_run(tmp_path)
    assert (run.problems, run.unfinished) == ((), "")
    assert len(run.statistics.tensors) == 8
    assert len(run.curves.stages[0].gates) == 100


def test_a_row_has_time_and_size():
    (row,) = report(smoke=True)
    assert row["network"] == "lenet5"
    assert row["seconds"] > 0
    assert 0.05 < row["MB"] < 5
