"""Float networks of a sweep: which runs share one, which of them wait, and what they get."""

import json

import pytest

from bayesbits.sweeps.entries import State, find_entries
from bayesbits.sweeps.float_networks import SharedFloatNetworks
from bayesbits.sweeps.scheduler import run_entries
from bayesbits.training.errors import StopSignals
from tests.sweeps.made_runs import ScriptedWorkers, made_runs

LINES = [{"phase": "float", "event": "train", "epoch": 1}, {"phase": "search", "event": "train", "epoch": 1}]


def trained(entry):
    entry.folder.mkdir(parents=True, exist_ok=True)
    (entry.folder / "float.safetensors").write_bytes(b"weights")
    (entry.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))


@pytest.mark.parametrize(
    ("axis", "shared"),
    [
        ("search.mu=0.01,0.1", 1), ("spec.bits=[2,4],[8]", 1), ("finetune.epochs=1,2", 1), ("name=a,b", 1),
        ("seed=0,1", 0), ("float.epochs=1,2", 0), ("data.batch_size=32,64", 0), ("model.name=lenet5,resnet20", 0),
        ("task.loss=cross_entropy,mse", 0),
    ],
)  # fmt: skip
def test_runs_share_what_has_the_same_settings(axis, shared, tmp_path):
    assert SharedFloatNetworks(find_entries(made_runs(axis), tmp_path, {})).shared() == shared


def test_recipes_without_float_training_share_nothing(tmp_path):
    runs = made_runs("search.mu=0.01,0.1", recipe="cifar10-vgg7")
    assert all(run.recipe.float_training is None for run in runs)
    entries = find_entries(runs, tmp_path, {})
    shared = SharedFloatNetworks(entries)
    entries[0].state = State.RUNNING
    assert shared.shared() == 0
    assert shared.next_of(entries[1:]) is entries[1]


def test_a_run_waits_for_the_one_that_trains_its_network_and_others_do_not(tmp_path):
    first, second, other = find_entries(made_runs("seed=0", "search.mu=0.01,0.1") + made_runs("seed=1"), tmp_path, {})
    shared = SharedFloatNetworks([first, second, other])
    assert shared.next_of([first, second, other]) is first
    first.state = State.RUNNING
    assert shared.next_of([second]) is None
    assert shared.next_of([second, other]) is other
    trained(first)
    assert shared.next_of([second, other]) is second


def test_the_next_run_trains_where_the_first_one_failed(tmp_path):
    first, second = find_entries(made_runs("search.mu=0.01,0.1"), tmp_path, {})
    first.state = State.FAILED
    assert SharedFloatNetworks([first, second]).next_of([second]) is second


def test_a_run_gets_the_weights_and_the_lines_of_their_training(tmp_path):
    first, second, third = find_entries(made_runs("search.mu=0.01,0.1,1"), tmp_path, {})
    shared = SharedFloatNetworks([first, second, third])
    second.folder.mkdir(parents=True)
    shared.give(second)  # there is none yet
    assert not list(second.folder.iterdir())
    trained(first)
    shared.give(second)
    assert (second.folder / "float.safetensors").read_bytes() == b"weights"
    assert [json.loads(line) for line in (second.folder / "metrics.jsonl").read_text().splitlines()] == LINES[:1]
    (second.folder / "float.safetensors").write_bytes(b"its own")
    shared.give(second)
    assert (second.folder / "float.safetensors").read_bytes() == b"its own"
    third.folder.mkdir(parents=True)
    (third.folder / "search.checkpoint").write_bytes(b"it has begun")  # its metrics stay as the checkpoint knows them
    shared.give(third)
    assert not (third.folder / "float.safetensors").exists()


def test_the_loop_of_a_sweep_starts_the_others_once_the_network_is_there(tmp_path):
    entries = find_entries(made_runs("search.mu=0.01,0.1,1"), tmp_path, {})
    workers, looks = ScriptedWorkers(3), []
    workers.holds = True

    def observe(entry):
        if entry is None:
            looks.append(len(workers.started))
            if len(looks) == 2:
                trained(entries[0])
            workers.holds = len(looks) < 4

    run_entries(entries, workers, observe, StopSignals(), seconds=0.0)
    assert looks[:3] == [1, 1, 3]
    assert all(entry.state is State.DONE and (entry.folder / "float.safetensors").is_file() for entry in entries)
