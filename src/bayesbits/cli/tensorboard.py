"""What a run writes to `metrics.jsonl`, passed on to TensorBoard while the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayesbits.recipes.run_folder import METRICS
from bayesbits.training.metrics import read_metrics
from bayesbits.utils.optional_packages import require_extras

_NO_VALUES = ("phase", "event", "epoch", "step")


class EventWriter:
    """Writes the lines of a run's metrics as events of TensorBoard, each line once.

    A value of a stage has the tag "stage/name", and the bits of a tensor "bits/tensor".
    """

    def __init__(self, folder: Path, log_folder: Path) -> None:
        require_extras("TensorBoard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / METRICS
        self.written: set[tuple[str, str, int]] = set()
        make_writer: Any = SummaryWriter  # which has no types in some versions of torch
        self.writer = make_writer(str(log_folder))

    def update(self) -> None:
        """Write the lines that are new; a search that was resumed writes some of its lines again."""
        for line in read_metrics(self.path) if self.path.is_file() else ():
            key = line["phase"], line["event"], line.get("step", 0)
            if key not in self.written:
                self.written.add(key)
                for tag, value in _values(line):
                    self.writer.add_scalar(tag, value, line.get("step", 0))
        self.writer.flush()

    def close(self) -> None:
        """End the file of events."""
        self.writer.close()


def _values(line: dict[str, Any]) -> list[tuple[str, float]]:
    """Tags and values of one line."""
    phase = line["phase"]
    found = [
        (f"{phase}/{name}", float(value))
        for name, value in line.items()
        if name not in _NO_VALUES and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if line["event"] == "execution":
        return []
    found += [(f"{phase}/lr/{group}", float(rate)) for group, rate in (line.get("lr") or {}).items()]
    if line["event"] == "gates":
        found += [(f"bits/{tensor}", float(bits)) for tensor, bits in line["bits"].items()]
    return found
