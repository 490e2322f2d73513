"""A run that was stopped and resumed gives bit for bit what an undisturbed run gives."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.nn.functional as F

import bayesbits as bb
from bayesbits.training.metrics import read_metrics
from tests.training.problems import (
    Failing,
    compressor,
    config,
    loaders,
    resumed,
    same,
    search_and_die,
    state,
    undisturbed,
)

ROOT = Path(__file__).parent.parent.parent
KINDS = list(loaders())


class StopError(Exception):
    pass


def stop():
    raise StopError


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_anywhere_ends_like_one_that_was_not(kind, tmp_path):
    expected, plan = undisturbed(kind)
    for call in (1, 4, 5, 8, 12):  # the first step, around the end of an epoch, in the middle, the last step
        folder = tmp_path / str(call)
        with pytest.raises(StopError):
            bb.search(compressor(), loaders()[kind], Failing(call, stop), config(), folder=folder, progress=False)
        final, its_plan = resumed(kind, folder)
        assert same(final, expected)
        assert its_plan == plan == bb.Plan.load(folder / "plan.json")


def test_a_checkpoint_that_is_older_than_the_stop_is_as_good(tmp_path):
    expected, _ = undisturbed("shuffling")
    with pytest.raises(StopError):
        bb.search(
            compressor(), loaders()["shuffling"], Failing(9, stop), config(checkpoint_seconds=1e6),
            folder=tmp_path, progress=False,
        )  # fmt: skip
    assert same(resumed("shuffling", tmp_path)[0], expected)


@pytest.mark.parametrize(("kind", "moment"), [("device", "step"), ("shuffling", "checkpoint")])
def test_kill_9(kind, moment, tmp_path):
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", search_and_die.__module__, str(tmp_path), kind, moment]
    child = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    assert child.returncode == -signal.SIGKILL
    steps = [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert steps
    assert max(steps) < 12
    assert same(resumed(kind, tmp_path)[0], undisturbed(kind)[0])


def test_metrics_have_every_step_once_after_a_resume(tmp_path):
    def lines(folder):
        return [
            {name: value for name, value in line.items() if name != "seconds"}
            for line in read_metrics(folder / "metrics.jsonl")
            if line["event"] != "execution"  # every sitting says which way it runs
        ]

    bb.search(compressor(), loaders()["device"], F.cross_entropy, config(), folder=tmp_path / "whole", progress=False)
    with pytest.raises(StopError):
        # The last checkpoint is from before the third step, and the line of the third step behind it.
        bb.search(
            compressor(), loaders()["device"], Failing(5, stop), config(checkpoint_seconds=1e6),
            folder=tmp_path / "cut", progress=False,
        )  # fmt: skip
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "sea')
    resumed("device", tmp_path / "cut")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    for event in ("train", "gates"):
        assert [line["step"] for line in lines(tmp_path / "cut") if line["event"] == event] == [3, 6, 9, 12]


def test_a_finished_search_gives_its_plan_again_without_training(tmp_path):
    handle = compressor()
    plan = bb.search(handle, loaders()["device"], F.cross_entropy, config(), folder=tmp_path, progress=False)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "plan.json").unlink()
    again = compressor()
    its_plan = bb.search(
        again, loaders()["device"], Failing(1, stop), config(), folder=tmp_path, resume=True, progress=False
    )
    assert its_plan == plan == bb.Plan.load(tmp_path / "plan.json")
    assert same(state(again), state(handle))
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_fine_tuning_goes_on_exactly_too_in_the_folder_of_the_search(tmp_path):
    searched = compressor()
    plan = bb.search(searched, loaders()["device"], F.cross_entropy, config(), folder=tmp_path, progress=False)
    start = state(searched)
    tuning = bb.FinetuneConfig(epochs=2, checkpoint_seconds=0, log_steps=2)

    def tune(loss_fn, **options):
        handle = compressor()
        handle.model.load_state_dict(start)
        bb.finetune(handle, loaders()["device"], loss_fn, tuning, plan=plan, progress=False, **options)
        return state(handle)

    expected = tune(F.cross_entropy)
    with pytest.raises(StopError):
        tune(Failing(6, stop), folder=tmp_path)
    assert same(tune(F.cross_entropy, folder=tmp_path, resume=True), expected)
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["event"] == "train"]
    phases = [(line["phase"], line["step"]) for line in lines]
    assert phases == [("search", 3), ("search", 6), ("search", 9), ("search", 12)] + [
        ("finetune", step) for step in (2, 4, 6, 8)
    ]


def test_resume_without_a_checkpoint_starts_and_a_start_over_one_is_refused(tmp_path):
    final, _ = resumed("device", tmp_path / "new")
    assert same(final, undisturbed("device")[0])
    before = (tmp_path / "new" / "search.checkpoint").read_bytes()
    with pytest.raises(bb.TrainingError, match=r"search\.checkpoint exists from an earlier run.*resume=True"):
        bb.search(compressor(), loaders()["device"], F.cross_entropy, config(), folder=tmp_path / "new", progress=False)
    assert (tmp_path / "new" / "search.checkpoint").read_bytes() == before
    with pytest.raises(ValueError, match="no folder was given"):
        bb.search(compressor(), loaders()["device"], F.cross_entropy, config(), resume=True)
