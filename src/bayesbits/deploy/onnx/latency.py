"""How long ONNX files take in onnxruntime, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.packages import require
from bayesbits.utils.batches import split_inputs


@dataclass(frozen=True)
class Latency:
    """One file at one size of batch."""

    name: str
    threads: int | None
    """How many threads a layer may use; None: as many as the runtime takes by itself."""
    batch: int
    seconds: float
    """Of the fastest round: what other programs took away is no part of it."""
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
) -> list[Latency]:
    """The time of one call of every file, one after the other in every round, so that all see the same machine.

    All files take what `small` takes. `example_inputs` are as for `attach`; their first example is repeated for larger
    batches. A network that takes one size alone is called with the examples as they are, which counts as a batch of 1.
    """
    require("measuring latency")
    from bayesbits.deploy.verification.runtime import Session

    results = []
    for count in threads:
        sessions = {name: Session(path, threads=count) for name, path in files.items()}
        for batch in batches if small.integer.structure.dynamic_batch else (1,):
            feeds = _feeds(small, example_inputs, batch)
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


def _feeds(small: DeployedNetwork, example_inputs: Any, batch: int) -> dict[str, Any]:
    """The first example that many times, by the names of the files' inputs."""
    structure = small.integer.structure
    tensors = [tensor.detach().cpu() for tensor in small.bind(*split_inputs(example_inputs))]
    several = [
        x[:1].expand(batch, *x.shape[1:]).contiguous() if batched else x
        for x, batched in zip(tensors, structure.batched, strict=True)
    ]
    return {name: x.numpy() for name, x in zip(structure.inputs, several, strict=True)}
