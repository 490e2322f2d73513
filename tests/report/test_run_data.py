"""A damaged or incomplete folder is refused with the name of the file; steps become epochs."""

import json
from dataclasses import replace

import pytest

from bayesbits.records.plan import Plan
from bayesbits.report import write_report
from bayesbits.report.run_data import Point, Stage, read_run, read_training_curves
from tests.report.runs import write_run, write_verification

EPOCHS = {"float": 2, "search": 10, "finetune": 0}


@pytest.mark.parametrize("name", ["result.json", "recipe.toml", "plan.json", "topology.json"])
def test_a_missing_file_is_named(tmp_path, name):
    write_run(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"there is no {name}"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    "name", ["result.json", "recipe.toml", "plan.json", "topology.json", "metrics.jsonl", "verification.json"]
)
@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b"\xff\xfe\n", b'{"version": 1}\n', b'{"event": "train"}\n'])
def test_a_damaged_file_is_named_and_nothing_is_written(tmp_path, name, content):
    write_run(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["relative_bops", "epochs", "versions"])
def test_a_result_with_something_else_in_place_of_a_value_is_refused(tmp_path, name):
    write_run(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: "high"}))
    with pytest.raises(ValueError, match=rf"result\.json cannot be used: {name} is 'high'"):
        read_run(tmp_path)


def test_a_result_of_before_there_were_metrics_is_read_by_its_accuracy(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "result.json"
    older = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("metrics", "advice")}
    path.write_text(json.dumps(older))
    (score,) = read_run(tmp_path).result.scores
    assert (score.name, score.value, score.float_value, score.unit) == ("accuracy", 97.5, 98.25, "%")
    path.write_text(json.dumps(older | {"accuracy": "high"}))
    with pytest.raises(ValueError, match=r"result\.json cannot be used: the metric accuracy is 'high'"):
        read_run(tmp_path)


def test_files_of_different_runs_are_told_apart(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "plan.json"
    plan = Plan.load(path)
    replace(plan, bits={**plan.bits, "stem.weight": 4}).save(path)
    with pytest.raises(ValueError, match="the two files are from different runs"):
        read_run(tmp_path)


def test_a_verification_of_another_network_is_refused(tmp_path):
    write_run(tmp_path)
    write_verification(tmp_path, layers=("stem", "stranger"))
    with pytest.raises(ValueError, match="is about another network: it has a layer 'stranger'"):
        read_run(tmp_path)


def write_metrics(path, *lines):
    path.write_text("".join(json.dumps({"event": "train", "phase": "search", **line}) + "\n" for line in lines))
    return path


def test_the_last_step_is_the_last_epoch(tmp_path):
    path = write_metrics(
        tmp_path / "metrics.jsonl",
        {"phase": "float", "step": 4, "task_loss": 3.0},
        {"step": 50, "task_loss": 2.0, "expected_relative_bops": 70.0},
        {"step": 75, "event": "evaluate", "validation_accuracy": 90.0},
        {"step": 100, "task_loss": None, "expected_relative_bops": 7.0},
    )
    points = (Point(5.0, 2.0, 70.0), Point(10.0, None, 7.0))
    assert read_training_curves(path, EPOCHS) == (
        Stage("float", 2, (Point(2.0, 3.0, None),)),
        Stage("search", 10, points),
    )


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = write_metrics(tmp_path / "metrics.jsonl", {"step": 5, "task_loss": 1.0})
    path.write_text(path.read_text() + '{"event": "tr')
    assert len(read_training_curves(path, EPOCHS)[0].points) == 1


@pytest.mark.parametrize("line", [{}, {"step": 0}, {"step": "five"}, {"step": 5, "task_loss": "low"}])
def test_a_damaged_line_is_named(tmp_path, line):
    path = write_metrics(tmp_path / "metrics.jsonl", {"step": 1, "task_loss": 1.0}, line)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged in line 2"):
        read_training_curves(path, EPOCHS)


def test_a_long_training_is_thinned_and_keeps_its_mean_and_its_end(tmp_path):
    lines = [{"step": step, "task_loss": float(step), "expected_relative_bops": 1 / step} for step in range(1, 1001)]
    points = read_training_curves(write_metrics(tmp_path / "metrics.jsonl", *lines), EPOCHS)[0].points
    assert len(points) == 250
    assert points[0] == Point(0.04, 2.5, 1 / 4)
    assert points[-1].epoch == 10.0
    assert points[-1].relative_bops == 1 / 1000
