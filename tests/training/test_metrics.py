"""Metrics: JSON lines of several phases in one file, each cut back to where it goes on."""

import json

import pytest
import torch

from bayesbits.training import TrainingError, metrics
from bayesbits.training.distributed import Ranks
from bayesbits.training.metrics import LossHistory, MetricsLog, read_metrics


def test_every_line_is_json_whatever_the_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path, "search").write("train", {"loss": float("inf"), "lr": {"weights": float("nan")}, "step": 3})
    expected = {"phase": "search", "event": "train", "loss": None, "lr": {"weights": None}, "step": 3}
    assert [json.loads(line) for line in path.read_text().splitlines()] == [expected]


def test_a_phase_that_starts_anew_removes_its_own_lines_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path, "search").write("train", {"step": 1})
    MetricsLog(path, "finetune").write("train", {"step": 2})
    MetricsLog(path, "finetune").write("train", {"step": 3})
    assert [(line["phase"], line["step"]) for line in read_metrics(path)] == [("search", 1), ("finetune", 3)]


def test_going_on_cuts_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    one = MetricsLog(path, "search")
    one.write("train", {"step": 1})
    size = one.sync()
    assert size == path.stat().st_size
    one.write("train", {"step": 2})
    two = MetricsLog(path, "search", resumed_at=size)
    two.write("train", {"step": 20})
    assert [line["step"] for line in read_metrics(path)] == [1, 20]
    assert two.sync() == path.stat().st_size


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    one = MetricsLog(tmp_path / "metrics.jsonl", "search")
    monkeypatch.setattr(metrics.os, "fsync", full)
    with pytest.raises(TrainingError, match=r"metrics\.jsonl.*No space left.*last checkpoint is intact"):
        one.sync()


def test_losses_are_averaged_over_the_steps_since_the_last_line():
    losses, ranks = LossHistory([[1.0, 2.0, 3.0]]), Ranks(torch.device("cpu"))
    reused = torch.tensor([3.0, 4.0, 6.0])
    losses.add(reused)
    reused.zero_()  # a recorded step writes into the same tensor again
    assert losses.read(ranks) is None
    assert losses.pending == [[1.0, 2.0, 3.0], [3.0, 4.0, 6.0]]
    assert losses.pop_means() == {"loss": 2.0, "task_loss": 3.0, "penalty": 4.5}
    assert losses.pop_means() == {}


def test_the_first_loss_that_is_not_finite_is_found_with_its_distance():
    losses = LossHistory()
    for row in ([1.0, 1.0, 1.0], [5.0, 5.0, float("nan")], [float("inf"), 1.0, 1.0]):
        losses.add(torch.tensor(row))
    assert losses.read(Ranks(torch.device("cpu"))) == (2, 5.0)
