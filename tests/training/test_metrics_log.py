"""Metrics: JSON lines of several phases in one file, each cut back to where it goes on."""

import json

import pytest

from bayesbits.training import TrainingError, metrics_log
from bayesbits.training.metrics_log import Metrics, read_metrics


def test_every_line_is_json_whatever_the_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    Metrics(path, "search").write("train", {"loss": float("inf"), "rates": {"weights": float("nan")}, "step": 3})
    expected = {"phase": "search", "event": "train", "loss": None, "rates": {"weights": None}, "step": 3}
    assert [json.loads(line) for line in path.read_text().splitlines()] == [expected]


def test_a_phase_that_starts_anew_removes_its_own_lines_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    Metrics(path, "search").write("train", {"step": 1})
    Metrics(path, "finetune").write("train", {"step": 2})
    Metrics(path, "finetune").write("train", {"step": 3})
    assert [(line["phase"], line["step"]) for line in read_metrics(path)] == [("search", 1), ("finetune", 3)]


def test_going_on_cuts_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    one = Metrics(path, "search")
    one.write("train", {"step": 1})
    size = one.sync()
    assert size == path.stat().st_size
    one.write("train", {"step": 2})
    two = Metrics(path, "search", resumed_at=size)
    two.write("train", {"step": 20})
    assert [line["step"] for line in read_metrics(path)] == [1, 20]
    assert two.sync() == path.stat().st_size


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    one = Metrics(tmp_path / "metrics.jsonl", "search")
    monkeypatch.setattr(metrics_log.os, "fsync", full)
    with pytest.raises(TrainingError, match=r"metrics\.jsonl.*No space left.*last good checkpoint is intact"):
        one.sync()
