"""Metrics of training: the losses of the steps, and the file `metrics.jsonl` with one JSON object a line.

Losses stay on the device until a line is due, and a loss that is not finite stops training. Every line of the file
names the phase that wrote it. Resuming removes the lines that were written after the checkpoint, so that no step is
there twice; a phase that starts from the beginning removes its own earlier lines.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesbits.training.distributed import Ranks
from bayesbits.training.errors import TrainingError
from bayesbits.utils.files import write_atomically

LOSSES = ("loss", "task_loss", "penalty")


class LossHistory:
    """The losses that the steps returned since the last line of metrics."""

    def __init__(self, pending: list[list[float]] | None = None) -> None:
        self.pending = pending or []
        """Losses on the host that are in no line yet; a checkpoint holds them."""
        self._on_device: list[Tensor] = []

    def add(self, losses: Tensor) -> None:
        """Add what a step returned, as a copy: the step may write into that tensor again."""
        self._on_device.append(losses.clone())

    def read(self, ranks: Ranks) -> tuple[int, float] | None:
        """Wait for the device, and average over the processes.

        Returns None, or, for the first step with a loss or penalty that is not finite, how many steps ago it was (1:
        the latest) and its loss.
        """
        rows = ranks.mean(torch.stack(self._on_device).cpu()) if self._on_device else torch.empty(0, len(LOSSES))
        self._on_device = []
        wrong = (~torch.isfinite(rows).all(dim=1)).nonzero().flatten().tolist()
        if wrong:
            return len(rows) - wrong[0], float(rows[wrong[0], 0])
        self.pending += rows.tolist()
        return None

    def pop_means(self) -> dict[str, float]:
        """The means of the losses that were read, which are then forgotten; empty where there are none."""
        count, rows = len(self.pending), self.pending
        self.pending = []
        return {name: sum(column) / count for name, column in zip(LOSSES, zip(*rows, strict=True), strict=bool(rows))}


class MetricsLog:
    """The lines of one phase in the file of metrics; without a path nothing is written."""

    def __init__(self, path: Path | None, phase: str, resumed_at: int | None = None) -> None:
        """`resumed_at` is the size that the file had when the checkpoint was written."""
        self.path, self.phase = path, phase
        if path is not None:
            kept = _lines_of_other_phases(path, phase) if resumed_at is None else _read(path)[:resumed_at]
            self._write(lambda: write_atomically(path, kept))
            self._size = len(kept)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Add a line."""
        if self.path is None:
            return
        path, line = self.path, json.dumps({"phase": self.phase, "event": event, **_to_json(values)}) + "\n"

        def append() -> None:
            with path.open("ab") as file:
                file.write(line.encode())

        self._write(append)
        self._size += len(line.encode())

    def sync(self) -> int:
        """Flush all lines to the disk, and return the size of the file."""
        if self.path is None:
            return 0
        path = self.path

        def flush() -> None:
            with path.open("ab") as file:
                os.fsync(file.fileno())

        self._write(flush)
        return self._size

    def _write(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            raise TrainingError(
                f"the metrics could not be written to {self.path} ({error}); the last checkpoint is intact: free some "
                "space, and call again with resume=True"
            ) from error


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a file of metrics; a last line that is incomplete is left out."""
    return [json.loads(line) for line in _complete_lines(Path(path))]


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _complete_lines(path: Path) -> list[bytes]:
    return [line for line in _read(path).splitlines(keepends=True) if line.endswith(b"\n")]


def _lines_of_other_phases(path: Path, phase: str) -> bytes:
    return b"".join(line for line in _complete_lines(path) if json.loads(line).get("phase") != phase)


def _to_json(value: Any) -> Any:
    """A value that JSON has: NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {key: _to_json(entry) for key, entry in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
