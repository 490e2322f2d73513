"""How time and memory are measured here, on the GPU and on the CPU."""

import os
import statistics
import threading
import time
from collections.abc import Callable

import torch


def seconds(function: Callable[[], object], device: str, repeats: int) -> float:
    """Median time of one call, after two calls to warm up."""
    return _cuda_seconds(function, repeats) if device == "cuda" else _cpu_seconds(function, repeats)


def _cpu_seconds(function: Callable[[], object], repeats: int) -> float:
    times = []
    for repeat in range(repeats + 2):
        start = time.perf_counter()
        function()
        if repeat >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _cuda_seconds(function: Callable[[], object], repeats: int) -> float:
    """Time on the device.

    Before each call a write through 256 MB empties the cache, and a pause lets the host run ahead, so that the time of
    launching is not part of it.
    """
    flush = torch.empty(2**26, dtype=torch.int32, device="cuda")
    pairs = []
    for repeat in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        torch.cuda._sleep(4_000_000)
        start.record()
        function()
        end.record()
        if repeat >= 2:
            pairs.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) / 1e3 for start, end in pairs)


def peak_bytes(function: Callable[[], object], device: str) -> int:
    """Memory that a call needs on top of what is allocated before it."""
    function()  # compilation and caches are not part of it
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        return torch.cuda.max_memory_allocated() - before
    return _peak_resident_bytes(function)


def _peak_resident_bytes(function: Callable[[], object]) -> int:
    """Highest resident size that a thread sees while the call runs, above the size before it."""
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * page

    before = peak = resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        done.set()
        watcher.join()
    return peak - before
