"""How long ONNX files take in onnxruntime, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from bayesbits.deploy.export.optional import require
from bayesbits.graph.trace import split_inputs
from bayesbits.tree import describe, tensors_in


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
    example_inputs: Any,
    *,
    threads: Sequence[int | None] = (1, None),
    batches: Sequence[int] = (1, 32),
    rounds: int = 20,
) -> list[Latency]:
    """The time of one call of every file, one after the other in every round, so that all see the same machine.

    `example_inputs` are as for `attach`; their first example is repeated for larger batches.
    """
    require("measuring latency")
    from bayesbits.deploy.verification.runtime import Session

    results = []
    for count in threads:
        sessions = {name: Session(path, threads=count) for name, path in files.items()}
        for batch in batches:
            times: dict[str, list[float]] = {name: [] for name in files}
            for step in range(rounds + 1):
                for name, session in sessions.items():
                    feeds = _feeds(session.inputs, example_inputs, batch)
                    start = time.perf_counter()
                    session.run(feeds)
                    if step:  # the first round only warms up
                        times[name].append(time.perf_counter() - start)
            results += [
                Latency(name, count, batch, min(times[name]), Path(path).stat().st_size) for name, path in files.items()
            ]
    return results


def _feeds(names: Sequence[str], example_inputs: Any, batch: int) -> dict[str, Any]:
    def several(x: Tensor) -> Tensor:
        return x[:1].expand(batch, *x.shape[1:]).contiguous() if x.dim() else x

    args, kwargs = tree_map_only(Tensor, several, split_inputs(example_inputs))
    named: dict[str, Tensor] = {}
    for name, value in kwargs.items():
        tensors: list[Tensor] = []
        for path, leaf in describe(value, tensors).leaves((name,)):
            if leaf.kind == "tensor":
                named[".".join(path)] = tensors[leaf.index]
    positional = [name for name in names if name not in named]
    given = dict(zip(positional, tensors_in(args), strict=False)) | named
    return {name: given[name].numpy() for name in names}
