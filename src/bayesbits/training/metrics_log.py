"""Metrics: one JSON object a line, in one file for search and fine-tuning.

Every line has the phase that wrote it. Going on from a checkpoint cuts what was written after it, so that no step is
there twice; a phase that starts anew removes its own earlier lines.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesbits.training.errors import TrainingError
from bayesbits.utils.files import write_atomically


class Metrics:
    """The file of metrics of one phase; without a path nothing is written."""

    def __init__(self, path: Path | None, phase: str, resumed_at: int | None = None) -> None:
        """`resumed_at` is the size that the file had when the checkpoint was written."""
        self.path, self.phase = path, phase
        if path is not None:
            kept = _lines_of_others(path, phase) if resumed_at is None else _read(path)[:resumed_at]
            self._guarded(lambda: write_atomically(path, kept))
            self._size = len(kept)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Add a line."""
        if self.path is None:
            return
        path, line = self.path, json.dumps({"phase": self.phase, "event": event, **_plain(values)}) + "\n"

        def append() -> None:
            with path.open("ab") as file:
                file.write(line.encode())

        self._guarded(append)
        self._size += len(line.encode())

    def sync(self) -> int:
        """Make sure that all lines are on the disk; returns the size of the file."""
        if self.path is None:
            return 0
        path = self.path

        def flush() -> None:
            with path.open("ab") as file:
                os.fsync(file.fileno())

        self._guarded(flush)
        return self._size

    def _guarded(self, act: Any) -> None:
        try:
            act()
        except OSError as error:
            raise TrainingError(
                f"the metrics could not be written to {self.path} ({error}); the last good checkpoint is intact: "
                "make room, and go on with resume=True"
            ) from error


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a file of metrics; a last one that was cut off in the middle is left out."""
    return [json.loads(line) for line in _whole_lines(Path(path))]


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _whole_lines(path: Path) -> list[bytes]:
    return [line for line in _read(path).splitlines(keepends=True) if line.endswith(b"\n")]


def _lines_of_others(path: Path, phase: str) -> bytes:
    return b"".join(line for line in _whole_lines(path) if json.loads(line).get("phase") != phase)


def _plain(value: Any) -> Any:
    """Numbers that JSON has: what is NaN or infinite becomes null."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
