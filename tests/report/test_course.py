"""Steps become epochs, and damage is told from what was cut off."""

import json

import pytest

from bayesbits.report.course import Point, Stage, read_course

EPOCHS = {"float": 2, "search": 10, "finetune": 0}


def write(path, *lines):
    path.write_text("".join(json.dumps({"event": "train", "phase": "search", **line}) + "\n" for line in lines))
    return path


def test_the_last_step_is_the_last_epoch(tmp_path):
    path = write(
        tmp_path / "metrics.jsonl",
        {"phase": "float", "step": 4, "task_loss": 3.0},
        {"step": 50, "task_loss": 2.0, "expected_relative_bops": 70.0},
        {"step": 75, "event": "evaluate", "validation_accuracy": 90.0},
        {"step": 100, "task_loss": None, "expected_relative_bops": 7.0},
    )
    points = (Point(5.0, 2.0, 70.0), Point(10.0, None, 7.0))
    assert read_course(path, EPOCHS) == (Stage("float", 2, (Point(2.0, 3.0, None),)), Stage("search", 10, points))


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = write(tmp_path / "metrics.jsonl", {"step": 5, "task_loss": 1.0})
    path.write_text(path.read_text() + '{"event": "tr')
    assert len(read_course(path, EPOCHS)[0].points) == 1


@pytest.mark.parametrize("line", [{}, {"step": 0}, {"step": "five"}, {"step": 5, "task_loss": "low"}])
def test_a_damaged_line_is_named(tmp_path, line):
    path = write(tmp_path / "metrics.jsonl", {"step": 1, "task_loss": 1.0}, line)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged in line 2"):
        read_course(path, EPOCHS)


def test_a_long_training_is_thinned_and_keeps_its_mean_and_its_end(tmp_path):
    lines = [{"step": step, "task_loss": float(step), "expected_relative_bops": 1 / step} for step in range(1, 1001)]
    points = read_course(write(tmp_path / "metrics.jsonl", *lines), EPOCHS)[0].points
    assert len(points) == 250
    assert points[0] == Point(0.04, 2.5, 1 / 4)
    assert points[-1].epoch == 10.0
    assert points[-1].relative_bops == 1 / 1000
