"""Float networks that runs of a sweep share: the first run of a group trains it, and the others start from a copy.

Runs that differ in nothing but the spec, the search and the fine-tuning train the same float network, with the same
seed. A run that starts from the copy computes what it would have computed after training the network itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from bayesbits.recipes import Recipe
from bayesbits.recipes.run_folder import FLOAT, METRICS
from bayesbits.recipes.toml import to_table
from bayesbits.sweeps.entries import Entry, State
from bayesbits.training.metrics import read_metrics
from bayesbits.utils.files import write_atomically

STAGE = "float"
_DECIDING = ("data", "model", "task", "float", "seed")


class SharedFloatNetworks:
    """Decides which runs wait for the float network of another one, and gives it to them."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._groups: list[list[Entry]] = []
        for entry in entries:
            own = next((group for group in self._groups if _same(group[0].run.recipe, entry.run.recipe)), None)
            if own is None:
                self._groups.append([entry])
            else:
                own.append(entry)

    def next_of(self, waiting: Iterable[Entry]) -> Entry | None:
        """The first run that can start: it has its float network, or no run that trains the same one is under way."""
        for entry in waiting:
            group = self._group_of(entry)
            trained = any(_is_trained(one.folder) for one in group)
            if trained or all(one.state is not State.RUNNING for one in group):
                return entry
        return None

    def give(self, entry: Entry) -> None:
        """Copy the float network into the folder of a run, with the lines of its training, where another run has it."""
        source = next((one.folder for one in self._group_of(entry) if _is_trained(one.folder)), None)
        if source is None or _is_trained(entry.folder) or entry.last_stage not in (None, STAGE):
            return
        lines = read_metrics(source / METRICS) if (source / METRICS).is_file() else []
        text = "".join(json.dumps(line) + "\n" for line in lines if line.get("phase") == STAGE)
        write_atomically(entry.folder / METRICS, text.encode())
        write_atomically(entry.folder / FLOAT, (source / FLOAT).read_bytes())  # last: it says that training is over

    def shared(self) -> int:
        """The number of runs that need not train a float network, as another one does."""
        return sum(len(group) - 1 for group in self._groups)

    def _group_of(self, entry: Entry) -> list[Entry]:
        return next(group for group in self._groups if any(one is entry for one in group))


def _same(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes train the same float network, both of them."""
    if one.float_training is None or other.float_training is None:
        return False
    first, second = to_table(one), to_table(other)
    return all(first.get(name) == second.get(name) for name in _DECIDING)


def _is_trained(folder: Path) -> bool:
    return (folder / FLOAT).is_file()
