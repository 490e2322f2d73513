"""The losses of the steps: kept on the device until someone looks, and never let past when they are not finite."""

import torch
from torch import Tensor

from bayesbits.training.distributed import Ranks

NAMES = ("loss", "task_loss", "penalty")


class Losses:
    """What the steps returned since the last line of metrics."""

    def __init__(self, pending: list[list[float]] | None = None) -> None:
        self.pending = pending or []
        """Losses on the host that no line has yet; a checkpoint keeps them."""
        self._unread: list[Tensor] = []

    def add(self, row: Tensor) -> None:
        """Take what a step returned; a copy, as the step may write there again."""
        self._unread.append(row.clone())

    def read(self, ranks: Ranks) -> tuple[int, float] | None:
        """Wait for the device, and take the mean over the processes.

        Returns None, or for the first step that has a loss or penalty which is not finite how many steps ago it was
        (1: the latest) and its loss.
        """
        rows = ranks.mean(torch.stack(self._unread).cpu()) if self._unread else torch.empty(0, len(NAMES))
        self._unread = []
        wrong = (~torch.isfinite(rows).all(dim=1)).nonzero().flatten().tolist()
        if wrong:
            return len(rows) - wrong[0], float(rows[wrong[0], 0])
        self.pending += rows.tolist()
        return None

    def take_means(self) -> dict[str, float]:
        """The means of what was read, which is then done with; empty where there is nothing."""
        count, rows = len(self.pending), self.pending
        self.pending = []
        return {name: sum(column) / count for name, column in zip(NAMES, zip(*rows, strict=True), strict=bool(rows))}
