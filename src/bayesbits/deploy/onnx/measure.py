"""`measure`: the latency table of a network, timed in onnxruntime on this machine.

1. The network is deployed with all activations in bytes, which says what shape every layer has, and what it emits.
2. Every distinct layer shape is timed by itself, in every form that the spec allows, with several numbers of input and
   output channels; quantizers and dequantizers between integer and float layers are timed, too.
3. Whole networks are timed, with activations of each kind, with all channels and with half of them. What they take
   beyond their layers is the overhead.

Everything is written to the file as it is measured, so that a process that is stopped goes on where it was.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from bayesbits.compression.spec import Spec
from bayesbits.deploy.onnx.measured_network import MeasuredNetwork
from bayesbits.deploy.onnx.runtime import machine
from bayesbits.records.latency_table import LatencyTable
from bayesbits.utils.checks import is_integer
from bayesbits.utils.optional_packages import require_extras
from bayesbits.utils.progress import progress_bar

SAVE_SECONDS = 5.0
"""The time between two writings of the file."""


def measure(
    model: nn.Module,
    example_inputs: Any,
    spec: Spec | None = None,
    *,
    path: str | Path | None = None,
    threads: int = 1,
    rounds: int = 30,
    progress: bool = False,
) -> LatencyTable:
    """Time the layers of a network in onnxruntime on this machine, so that the latency of every plan can be predicted.

    The network is not changed. Times do not depend on its weights.

    Args:
        model: The float network.
        example_inputs: Inputs as for :func:`bayesbits.attach`; latencies are those of a call with these.
        spec: The spec that the network will be compressed with: only what it allows is measured. None: the default one.
        path: The file that the table is written to while it is measured. Where it holds a part of the same table, that
            is not measured again.
        threads: How many threads a layer may use.
        rounds: How often everything runs; the fastest run counts.
        progress: Whether a progress bar is shown.

    Returns:
        The table; ``bb.Budget(latency_ms=..., table=table)`` uses it.

    Raises:
        ImportError: If a package of the extra ``onnx`` is missing.
        ValueError: If the network cannot be deployed, or the file holds the table of another network or machine.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
        >>> table = bb.measure(model, torch.randn(1, 8), bb.Spec(bits=(4, 8)), rounds=2)
        >>> [layer.name for layer in table.layers], table.threads
        (['0', '2'], 1)
    """
    require_extras("measure", "onnx")
    for name, value in (("threads", threads), ("rounds", rounds)):
        if not is_integer(value) or value < 1:
            raise ValueError(f"{name} is {value!r}; it is an integer of at least 1")
    if spec is not None and spec.activations != "static":
        raise ValueError(
            f"Spec.activations is {spec.activations!r}, and a latency table has times of static activations alone. "
            'Give a budget in bit operations or bytes instead, such as "5% bops", and time the exported file by '
            "bayesbits bench; or measure with spec.activations=static"
        )
    network = MeasuredNetwork(copy.deepcopy(model).cpu(), example_inputs, Spec() if spec is None else spec, threads)
    here = machine()
    table = LatencyTable(here.cpu, here.runtime, threads, network.shapes(), {})
    file = None if path is None else Path(path)
    table = _continued(table, file)
    missing = table.missing()
    with progress_bar("measuring", len(missing) + len(network.plans()), shown=progress) as advance:
        table = _with_rows(table, network, missing, rounds, file, advance)
        if not table.overheads:
            table = replace(table, overheads=tuple(network.overheads(table, rounds, advance)))
    if file is not None:
        table.save(file)
    return table


def _continued(table: LatencyTable, path: Path | None) -> LatencyTable:
    """The table with the rows that a file holds already; an error where that is another table."""
    if path is None or not path.exists():
        return table
    before = LatencyTable.load(path)
    for what, found, now in (
        ("on another machine", before.machine, table.machine),
        ("for another network or spec", before.layers, table.layers),
    ):
        if found != now:
            words = f": {found}; this is {now}" if isinstance(found, str) else ""
            raise ValueError(f"{path} was measured {what}{words}. Remove it, or choose another file by --output")
    return before


def _with_rows(
    table: LatencyTable, network: MeasuredNetwork, missing: Sequence[str], rounds: int, path: Path | None, advance: Any
) -> LatencyTable:
    """The table with all rows; written from time to time, and when measuring is interrupted."""
    rows, saved = dict(table.rows), time.monotonic()
    try:
        call = network.call_seconds(rounds) if missing else 0.0
        models = network.models()
        for row in missing:
            rows[row] = 1e3 * max(0.0, network.seconds(*models[row], rounds) - call)
            advance(row)
            if path is not None and time.monotonic() - saved > SAVE_SECONDS:
                replace(table, rows=rows).save(path)
                saved = time.monotonic()
    finally:
        if path is not None:
            replace(table, rows=rows).save(path)
    return replace(table, rows=rows)
