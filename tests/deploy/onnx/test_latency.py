"""Latencies with a clock that a session turns: what is measured, in which order, on which inputs."""

from types import SimpleNamespace

import pytest
import torch

from bayesbits.deploy.onnx import latency
from bayesbits.deploy.onnx.latency import Latency, measure_latencies

RUNS: list[tuple[str, int, tuple[int, ...]]] = []
SECONDS = {"a": [100.0, 5.0, 3.0, 4.0], "b": [100.0, 2.0, 2.5, 1.5]}


class Clock:
    """Stands for the module `time`."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def files(monkeypatch, tmp_path):
    clock = Clock()

    class Session:
        def __init__(self, path, *, threads):
            self.name, self.threads, self.runs = path.stem, threads, 0

        def run(self, feeds):
            RUNS.append((self.name, self.threads, tuple(feeds["x"].shape)))
            assert (feeds["x"] == feeds["x"][:1]).all()
            assert feeds["shift"].tolist() == [7.0, 8.0]
            clock.now += SECONDS[self.name][self.runs % 4]
            self.runs += 1

    RUNS.clear()
    monkeypatch.setattr(latency, "Session", Session)
    monkeypatch.setattr(latency, "time", clock)
    for name, size in (("a", 3), ("b", 5)):
        (tmp_path / f"{name}.onnx").write_bytes(bytes(size))
    return {name: tmp_path / f"{name}.onnx" for name in ("a", "b")}


def network(dynamic: bool):
    structure = SimpleNamespace(dynamic_batch=dynamic, batched=(dynamic, False), inputs=("x", "shift"))
    return SimpleNamespace(integer=SimpleNamespace(structure=structure), bind=lambda args, kwargs: list(args))


INPUTS = (torch.tensor([[1.0], [2.0]]), torch.tensor([7.0, 8.0]))


def test_the_fastest_round_after_the_first_counts_and_files_take_turns(files):
    found = measure_latencies(files, network(True), INPUTS, threads=(1, None), batches=(1, 4), rounds=3)
    expected = [(threads, batch) for threads in (1, None) for batch in (1, 4)]
    assert found == [
        Latency(name, threads, batch, seconds, size)
        for threads, batch in expected
        for name, seconds, size in (("a", 3.0, 3), ("b", 1.5, 5))
    ]
    assert RUNS[:4] == [("a", 1, (1, 1)), ("b", 1, (1, 1))] * 2
    assert RUNS[8:10] == [("a", 1, (4, 1)), ("b", 1, (4, 1))]
    assert len(RUNS) == 2 * 2 * 2 * 4


def test_a_network_of_a_fixed_size_is_called_with_the_examples_as_they_are(files):
    fixed = (torch.tensor([[3.0], [3.0]]), INPUTS[1])
    found = measure_latencies(files, network(False), fixed, threads=(1,), batches=(1, 32), rounds=3)
    assert [(one.name, one.batch) for one in found] == [("a", 1), ("b", 1)]
    assert {shape for _, _, shape in RUNS} == {(2, 1)}
