"""What can be read of a folder is shown, and what is missing, damaged or from another run is said."""

import json
import os
from dataclasses import replace

import pytest

from bayesbits.recipes.run_state import recorded
from bayesbits.records.plan import Plan
from bayesbits.report.run_data import read_run
from tests.report.runs import write_bench, write_run, write_statistics, write_verification

FILES = ["result.json", "recipe.toml", "plan.json", "topology.json", "metrics.jsonl", "verification.json"]
FILES += ["statistics.json", "bench.json"]


def test_a_whole_run_has_no_problems(tmp_path):
    write_run(tmp_path)
    write_verification(tmp_path)
    statistics, bench = write_statistics(tmp_path), write_bench(tmp_path)
    run = read_run(tmp_path)
    assert (run.problems, run.unfinished) == ((), "")
    assert (run.statistics, run.bench) == (statistics, bench)
    assert run.verification.failure is None
    assert [stage.name for stage in run.curves.stages] == ["float", "search", "finetune"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no finished run: there is no result\.json"):
        read_run(tmp_path)


def test_an_unfinished_run_is_read_as_far_as_it_is(tmp_path):
    write_run(tmp_path)
    for name in ("result.json", "plan.json"):
        (tmp_path / name).unlink()
    run = read_run(tmp_path)
    assert "holds a run that is not finished" in run.unfinished
    assert "bayesbits search" in run.unfinished
    assert (run.result, run.plan, run.cost, run.problems) == (None, None, None, ())
    assert run.topology is not None
    assert len(run.curves.stages) == 3


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b"\xff\xfe\n", b'{"version": 1}\n', b'{"event": "train"}\n'])
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path, name, content):
    write_run(tmp_path)
    write_verification(tmp_path)
    write_statistics(tmp_path)
    write_bench(tmp_path)
    (tmp_path / name).write_bytes(content)
    run = read_run(tmp_path)
    assert [name in problem for problem in run.problems] == [True] * len(run.problems)
    assert run.problems
    part = {"result.json": "recipe", "recipe.toml": "result"}.get(name, "recipe")
    assert getattr(run, part) is not None


@pytest.mark.parametrize("name", ["relative_bops", "epochs", "versions"])
def test_a_result_with_something_else_in_place_of_a_value_is_left_out(tmp_path, name):
    write_run(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: "high"}))
    run = read_run(tmp_path)
    assert run.result is None
    assert f"{name} is 'high'" in run.problems[0]


def test_a_result_of_before_there_were_metrics_is_read_by_its_accuracy(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "result.json"
    older = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("metrics", "advice")}
    path.write_text(json.dumps(older))
    (score,) = read_run(tmp_path).result.scores
    assert (score.name, score.value, score.float_value, score.unit) == ("accuracy", 97.5, 98.25, "%")
    path.write_text(json.dumps(older | {"accuracy": "high"}))
    assert "the metric accuracy is 'high'" in read_run(tmp_path).problems[0]


def test_files_of_different_runs_are_told_apart(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "plan.json"
    plan = Plan.load(path)
    replace(plan, bits={**plan.bits, "stem.weight": 4}).save(path)
    assert "the two files are from different runs" in read_run(tmp_path).problems[0]


def test_statistics_of_another_plan_are_left_out(tmp_path):
    write_run(tmp_path)
    statistics = write_statistics(tmp_path)
    wrong = replace(statistics.tensors[0], bits=8)
    replace(statistics, tensors=(wrong, *statistics.tensors[1:])).save(tmp_path / "statistics.json")
    run = read_run(tmp_path)
    assert run.statistics is None
    assert "stem.weight had 8 bits when it was measured" in run.problems[0]


def test_a_verification_of_another_network_is_left_out(tmp_path):
    write_run(tmp_path)
    write_verification(tmp_path, layers=("stem", "stranger"))
    run = read_run(tmp_path)
    assert run.verification is None
    assert "it is about another network: it has a layer 'stranger'" in run.problems[0]


def test_missing_files_of_a_finished_run_are_named(tmp_path):
    write_run(tmp_path)
    assert read_run(tmp_path).incomplete == ""
    for name in ("plan.json", "topology.json", "recipe.toml"):
        (tmp_path / name).unlink()
    assert read_run(tmp_path).incomplete.startswith("recipe.toml, topology.json and plan.json are not there")
    assert read_run(tmp_path).unfinished == ""


def test_what_became_of_an_unfinished_run_is_said_in_short(tmp_path):
    write_run(tmp_path)
    (tmp_path / "result.json").unlink()
    assert read_run(tmp_path).whereabouts == read_run(tmp_path).unfinished
    assert not read_run(tmp_path).has_ended
    with recorded(tmp_path, "bayesbits search again"):
        run = read_run(tmp_path)
        assert run.whereabouts.startswith(f"Process {os.getpid()} on")
        assert "Go on" not in run.whereabouts
        assert not run.failed
    with pytest.raises(ValueError, match="no data"), recorded(tmp_path, "bayesbits search again"):
        raise ValueError("no data")
    run = read_run(tmp_path)
    assert run.whereabouts.endswith("ValueError: no data. Go on with: bayesbits search again")
    assert (run.failed, run.has_ended) == (True, True)
