"""Latencies: with a clock that a session turns, and of real files with any inputs."""

from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import bayesbits as bb
from bayesbits.deploy.onnx import latency
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.latency import Latency, measure_latencies
from bayesbits.deploy.onnx.runtime import Session
from tests.deploy.calls import BATCH, FixedBatch, Positions, Taking, check_close, deploy_uniformly, rows, run

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


def test_times_of_files_with_nested_inputs(tmp_path):
    inputs = {"zeta": rows(3), "batch": BATCH, "alpha": rows(4)}
    model = Taking()
    compressor, small = deploy_uniformly(model, inputs)
    bb.export_onnx(small, inputs, tmp_path / "small.onnx")
    export_float_onnx(compressor.detach(), inputs, tmp_path / "float.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("small", "float")}
    found = measure_latencies(files, small, inputs, threads=(1,), batches=(2,), rounds=1)
    assert [one.name for one in found] == ["small", "float"]
    session = onnxruntime.InferenceSession(str(files["float"]), providers=["CPUExecutionProvider"])
    feeds = {"batch.image": rows(1), "batch.others.0": rows(2), "zeta": rows(3), "alpha": rows(4)}
    (output,) = session.run(None, {name: x.numpy() for name, x in feeds.items()})
    check_close(torch.from_numpy(output), run(model, inputs))


@pytest.mark.parametrize("count", [1, 2])
def test_the_batch_is_found_behind_what_is_none(count, tmp_path):
    inputs = (torch.randn(6), {"x": torch.randn(count, 6, 4), "y": torch.randn(count, 6, 4)})
    compressor, small = deploy_uniformly(Positions(), inputs)
    assert small.integer.structure.batched == (False, True, True)
    assert (
        run(small, tree_map_only(Tensor, lambda x: x if x.dim() == 1 else x[:1].expand(5, 6, 4), inputs)).shape[0] == 5
    )
    bb.export_onnx(small, inputs, tmp_path / "small.onnx")
    export_float_onnx(compressor.detach(), inputs, tmp_path / "float.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("small", "float")}
    found = measure_latencies(files, small, inputs, threads=(1,), batches=(1, 3), rounds=1)
    assert [(one.name, one.batch) for one in found] == [("small", 1), ("float", 1), ("small", 3), ("float", 3)]


def test_times_are_taken_of_inputs_by_their_names(tmp_path, monkeypatch):
    inputs = (torch.randn(6), {"x": torch.randn(2, 6, 4), "y": torch.randn(2, 6, 4)})
    _, small = deploy_uniformly(Positions(), inputs)
    bb.export_onnx(small, inputs, tmp_path / "small.onnx")
    fed: list[dict[str, Any]] = []
    monkeypatch.setattr(Session, "run", lambda self, feeds: fed.append(feeds))
    turned = (inputs[0], dict(reversed(inputs[1].items())))
    measure_latencies({"small": tmp_path / "small.onnx"}, small, turned, threads=(1,), batches=(1,), rounds=1)
    assert set(fed[0]) == {"positions", "batch.x", "batch.y"}
    assert torch.equal(torch.from_numpy(fed[0]["batch.x"]), inputs[1]["x"][:1])


@pytest.mark.parametrize("image", [True, False])
def test_times_of_networks_that_take_one_size_alone(image, tmp_path):
    model, example = (nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(3, 8, 8)) if image else (FixedBatch(), None)
    example = torch.randn(3, 2, 4) if example is None else example
    compressor, small = deploy_uniformly(model, example)
    bb.export_onnx(small, example, tmp_path / "small.onnx")
    export_float_onnx(compressor.detach(), example, tmp_path / "float.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("small", "float")}
    found = measure_latencies(files, small, example, threads=(1,), rounds=1)
    assert [one.batch for one in found] == [1, 1]


def test_files_of_openvino_run_there(files, monkeypatch):
    seen = []

    class Other:
        def __init__(self, path, *, threads):
            seen.append((path.stem, threads))

        def run(self, feeds):
            assert feeds["x"].shape == (1, 1)

    monkeypatch.setattr(latency.openvino_runtime, "Session", Other)
    found = measure_latencies(files, network(True), INPUTS, threads=(1, None), batches=(1,), rounds=3, openvino=("b",))
    assert seen == [("b", 1), ("b", None)]
    assert {name for name, _, _ in RUNS} == {"a"}
    assert [one.name for one in found] == ["a", "b"] * 2
