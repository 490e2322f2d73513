"""Launching, recording and replaying, with the GPU's part played by stand-ins; tests/gpu has the real ones."""

import logging
from contextlib import contextmanager, nullcontext

import pytest
import torch

from bayesbits.utils.cuda_graph import WARM_UP, Recorder


class Stream:
    def __init__(self, device: object = None) -> None: ...

    def wait_stream(self, other: object) -> None: ...


class Graph:
    recorded = replayed = 0

    def replay(self) -> None:
        Graph.replayed += 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    @contextmanager
    def recording(graph: Graph, stream: Stream):
        Graph.recorded += 1
        yield

    Graph.recorded = Graph.replayed = 0
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    return Recorder(torch.device("cpu"))


def test_launched_then_recorded_then_replayed_on_the_same_memory(recorder):
    seen: list[dict[str, torch.Tensor]] = []

    def function(batch: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        assert name == "kept as it is"
        seen.append(batch)
        return batch["x"]

    for number in range(WARM_UP + 3):
        assert recorder.has_recorded == (number > WARM_UP)
        batch = {"x": torch.full((2,), float(number))}
        result = recorder.run(function, batch, "kept as it is")
        assert (result is batch["x"]) == (number < WARM_UP)
        assert result.tolist() == [number, number]  # a recorded one returns its own place, into which x was copied
    assert (len(seen), Graph.recorded, Graph.replayed) == (WARM_UP + 1, 1, 3)
    recorder.forget()
    recorder.run(function, {"x": torch.zeros(3)}, "kept as it is")
    assert (recorder.has_recorded, len(seen), Graph.replayed) == (False, WARM_UP + 2, 3)


def test_what_cannot_be_recorded_is_launched_and_said_once(recorder, caplog):
    calls = []

    def waits() -> int:
        if recorder._runs > WARM_UP and len(calls) == WARM_UP:
            calls.append("recorded")
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        calls.append("launched")
        return len(calls)

    with caplog.at_level(logging.WARNING, "bayesbits"):
        for _ in range(WARM_UP + 3):
            recorder.run(waits)
    assert calls == ["launched"] * WARM_UP + ["recorded"] + ["launched"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "the step cannot be recorded as a CUDA graph and runs unrecorded: RuntimeError: operation not permitted when "
        "stream is capturing"
    ]


def test_an_error_of_the_function_itself_is_raised(recorder):
    def wrong() -> None:
        raise RuntimeError("shapes do not fit")

    for _ in range(WARM_UP + 2):
        with pytest.raises(RuntimeError, match="shapes do not fit"):
            recorder.run(wrong)
