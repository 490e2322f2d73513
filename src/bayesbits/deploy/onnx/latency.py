"""The latency of ONNX files in onnxruntime and OpenVINO, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx import openvino_runtime
from bayesbits.deploy.onnx.runtime import Session
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.optional_packages import require_extras


@dataclass(frozen=True)
class Latency:
    """The latency of one file at one batch size."""

    name: str
    threads: int | None
    """How many threads a layer may use; None: the runtime's default."""
    batch: int
    seconds: float
    """The time of the fastest round, which other programs disturbed least."""
    bytes: int
    """The size of the file."""


def measure_latencies(
    files: Mapping[str, str | Path],
    small: DeployedNetwork,
    example_inputs: Any,
    *,
    threads: Sequence[int | None] = (1, None),
    batches: Sequence[int] = (1, 32),
    rounds: int = 20,
    openvino: Collection[str] = (),
) -> list[Latency]:
    """Measure one call of every file in every round, in turn, so that all files see the same state of the machine.

    All files take the inputs of `small`. `example_inputs` are as for `attach`; their first example is repeated for
    larger batches. A network with a fixed batch size is called with the examples as they are, reported as batch 1. The
    files that are named in `openvino` run there, the others in onnxruntime, with the same number of threads.
    """
    require_extras("measuring latency", "onnx", *(("openvino",) if openvino else ()))
    results = []
    for count in threads:
        sessions = {
            name: (openvino_runtime.Session if name in openvino else Session)(path, threads=count)
            for name, path in files.items()
        }
        for batch in batches if small.integer.structure.dynamic_batch else (1,):
            feeds = feeds_of(small, example_inputs, batch)
            times: dict[str, list[float]] = {name: [] for name in files}
            for step in range(rounds + 1):
                for name, session in sessions.items():
                    start = time.perf_counter()
                    session.run(feeds)
                    if step:  # the first round only warms up
                        times[name].append(time.perf_counter() - start)
            results += [
                Latency(name, count, batch, min(times[name]), Path(path).stat().st_size) for name, path in files.items()
            ]
    return results


def feeds_of(small: DeployedNetwork, example_inputs: Any, batch: int) -> dict[str, Any]:
    """The first example repeated `batch` times, by the names of the files' inputs."""
    structure = small.integer.structure
    tensors = [tensor.detach().cpu() for tensor in small.bind(*split_inputs(example_inputs))]
    several = [
        x[:1].expand(batch, *x.shape[1:]).contiguous() if batched else x
        for x, batched in zip(tensors, structure.batched, strict=True)
    ]
    return {name: x.numpy() for name, x in zip(structure.inputs, several, strict=True)}
