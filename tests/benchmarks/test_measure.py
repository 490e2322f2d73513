"""How time and memory are measured: the median after two calls to warm up, and the highest resident size."""

import time

import torch

from benchmarks.measure import peak_bytes, seconds


def test_the_median_time_without_the_first_two_calls(monkeypatch):
    durations = iter([100.0, 50.0, 1.0, 9.0, 2.0])
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call() -> None:
        clock[0] += next(durations)

    assert seconds(call, "cpu", repeats=3) == 2.0
    assert next(durations, None) is None


def test_memory_on_top_of_what_is_there():
    held = torch.ones(2**24)  # 64 MB that are there before

    def call() -> None:
        added = torch.ones(2**24)
        time.sleep(0.02)  # the size is watched every half a millisecond
        assert added.nbytes == held.nbytes

    assert 0.8 * held.nbytes < peak_bytes(call, "cpu") < 1.5 * held.nbytes
