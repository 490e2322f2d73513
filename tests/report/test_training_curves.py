"""Steps become epochs, also of a stage that still runs; damaged lines are named."""

import json

import pytest

from bayesbits.report.training_curves import Point, read_curves

EPOCHS = {"float": 2, "search": 10, "finetune": 0}


def write_metrics(path, *lines):
    path.write_text(
        "".join(json.dumps({"event": "train", "phase": "search", "epoch": 0, **line}) + "\n" for line in lines)
    )
    return path


def test_the_last_step_of_a_finished_stage_is_its_last_epoch(tmp_path):
    path = write_metrics(
        tmp_path / "metrics.jsonl",
        {"phase": "float", "step": 4, "task_loss": 3.0},
        {"step": 50, "task_loss": 2.0, "expected_relative_bops": 70.0, "lr": {"weights": 0.1}, "seconds": 3.0},
        {"step": 75, "event": "evaluate", "validation_accuracy": 90.0},
        {
            "step": 90,
            "event": "gates",
            "relative_bops": 9.0,
            "bits": {"w": 4},
            "probabilities": {"w": {"4": 1.0, "8": 0.5}},
        },
        {"step": 100, "task_loss": None, "expected_relative_bops": 7.0},
    )
    first, second = read_curves(path, EPOCHS, finished=True).stages
    assert (first.name, first.epochs, first.points) == ("float", 2, (Point(2.0, {"task_loss": 3.0}),))
    assert second.points[0] == Point(5.0, {"task_loss": 2.0, "expected_relative_bops": 70.0})
    assert second.points[1:] == (Point(10.0, {"expected_relative_bops": 7.0}), Point(9.0, {"relative_bops": 9.0}))
    assert second.evaluations == (Point(7.5, {"validation_accuracy": 90.0}),)
    (gates,) = second.gates
    assert (gates.epoch, gates.bits, gates.probabilities, gates.kept) == (
        9.0,
        {"w": 4},
        {"w": {"4": 1.0, "8": 0.5}},
        {},
    )


def test_the_epochs_of_a_stage_that_still_runs_are_estimated(tmp_path):
    lines = [{"step": step, "epoch": step // 20, "task_loss": 1.0} for step in (19, 30, 49)]
    (stage,) = read_curves(write_metrics(tmp_path / "m", *lines), EPOCHS, finished=False).stages
    assert stage.epochs == 10
    assert [point.epoch for point in stage.points] == pytest.approx([1.0, 30 / 19, 49 / 19])


def test_names_are_those_of_all_stages(tmp_path):
    path = write_metrics(
        tmp_path / "m", {"phase": "float", "step": 1, "loss": 1.0}, {"step": 1, "mu_relative_bops": 2.0}
    )
    assert read_curves(path, EPOCHS, finished=True).names() == ["loss", "mu_relative_bops"]


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = write_metrics(tmp_path / "metrics.jsonl", {"step": 5, "task_loss": 1.0})
    path.write_text(path.read_text() + '{"event": "tr')
    assert len(read_curves(path, EPOCHS, finished=True).stages[0].points) == 1


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"step": 0},
        {"step": "five"},
        {"step": 5, "task_loss": "low"},
        {"step": 5, "epoch": -1},
        {"step": 5, "event": "gates"},
        {"step": 5, "event": "gates", "relative_bops": "few", "bits": {}, "probabilities": {}},
        {"step": 5, "event": "gates", "relative_bops": 1.0, "bits": {"w": "4"}, "probabilities": {}},
        {"step": 5, "event": "gates", "relative_bops": 1.0, "bits": {}, "probabilities": {"w": {"4": "high"}}},
    ],
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = write_metrics(tmp_path / "metrics.jsonl", {"step": 1, "task_loss": 1.0}, line)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged in line 2"):
        read_curves(path, EPOCHS, finished=True)


def test_a_long_training_is_thinned_and_keeps_its_mean_and_its_end(tmp_path):
    lines = [{"step": step, "task_loss": float(step), "expected_relative_bops": 1 / step} for step in range(1, 1001)]
    points = read_curves(write_metrics(tmp_path / "metrics.jsonl", *lines), EPOCHS, finished=True).stages[0].points
    assert len(points) == 250
    assert points[0] == Point(0.04, {"task_loss": 2.5, "expected_relative_bops": 1 / 4})
    assert points[-1].epoch == 10.0
    assert points[-1].values["expected_relative_bops"] == 1 / 1000
