"""Two real processes train what one process with the doubled batch trains, and stop together."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bayesbits as bb
from bayesbits.training.checkpoint import read_checkpoint
from bayesbits.training.metrics import read_metrics
from tests.training import parallel
from tests.training.problems import same

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def processes(folder):
    """What came of every case, in each of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    command = [sys.executable, "-W", "error::UserWarning", "-m", parallel.__name__, str(folder)]
    children = [subprocess.Popen(command, cwd=ROOT, env=environment | {"RANK": str(rank)}) for rank in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The same in this process alone, with the doubled batch."""
    return parallel.results(0, 1, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("case", ["lenet5", "frozen norm", "budget", "sharded"])
def test_two_processes_equal_one_with_the_doubled_batch(case, processes, one):
    first, second = (found[case] for found in processes)
    assert same(first["state"], second["state"])
    assert first["plan"] == second["plan"] == one[case]["plan"]
    for name, expected in one[case]["state"].items():
        torch.testing.assert_close(first["state"][name], expected, rtol=1e-3, atol=2e-5, msg=name)


def test_one_process_writes(processes, folder):
    assert bb.Plan.load(folder / "lenet5" / "plan.json").to_json() == processes[1]["lenet5"]["plan"]
    lines = [(line["event"], line["step"]) for line in read_metrics(folder / "lenet5" / "metrics.jsonl")]
    written = [("execution", 1), *((event, step) for step in (3, 6, 8) for event in ("train", "gates"))]
    assert lines == written


def test_a_signal_to_one_process_stops_both_and_they_go_on_together(processes):
    for found in processes:
        assert found["interrupted"]["error"] == "Interrupted"
        assert "after 3 steps" in found["interrupted"]["message"]
        assert same(found["resumed"]["state"], processes[0]["frozen norm"]["state"])


def test_a_sharded_network_goes_on_exactly_from_a_checkpoint_with_whole_weights(processes, folder):
    content = read_checkpoint(folder / "sharded" / "search.checkpoint")
    assert content["model"]["hidden.weight"].shape == (8, 36)
    for found in processes:
        assert found["sharded, interrupted"]["error"] == "Interrupted"
        assert same(found["sharded, resumed"]["state"], processes[0]["sharded"]["state"])


def test_what_fails_in_one_process_stops_both(processes):
    assert processes[1]["loader"]["error"] == "LoaderError"
    assert processes[0]["loader"]["error"] == "TrainingError"
    assert "process 1: the loader raised OSError at epoch 0, batch 2" in processes[0]["loader"]["message"]
    assert [found["infinite"]["error"] for found in processes] == ["NonFiniteError"] * 2


def test_an_epoch_ends_where_the_shortest_loader_does(processes, folder):
    assert [line["step"] for line in read_metrics(folder / "uneven" / "metrics.jsonl")][-1] == 4
    assert same(processes[0]["uneven"]["state"], processes[1]["uneven"]["state"])
