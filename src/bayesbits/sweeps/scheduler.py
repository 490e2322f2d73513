"""The loop of a sweep: runs are started as workers become free, and their endings are noted.

A run waits where another one trains the same float network. One that fails does not stop the others, and one whose
process was killed goes on from its checkpoint, a few times. After Ctrl-C or SIGTERM nothing is started any more, and
the runs are asked to write their checkpoints and to end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from bayesbits.recipes.run_folder import prepare
from bayesbits.sweeps.entries import Entry, State, finished_result
from bayesbits.sweeps.float_networks import SharedFloatNetworks
from bayesbits.sweeps.workers import Ending, Outcome, Workers
from bayesbits.training.errors import StopSignals

MOST_LOSSES = 3
"""How often the process of a run may be killed before the run counts as failed."""
_SECONDS = 0.25  # between two looks at the workers

Observer = Callable[[Entry | None], None]
"""Called with an entry whose state has changed, and several times a second with None."""


def run_entries(
    entries: Sequence[Entry], workers: Workers, observe: Observer, stop: StopSignals, seconds: float = _SECONDS
) -> None:
    """Run every entry that is not done; returns when all have ended, or when a signal has stopped them."""
    waiting = deque(entry for entry in entries if entry.state is not State.DONE)
    running: dict[Path, Entry] = {}
    floats = SharedFloatNetworks(entries)
    stopping = False
    try:
        while waiting or running:
            if stop.received and not stopping:
                stopping = True
                waiting.clear()
                workers.stop()
            while workers.free and not stop.received and (entry := floats.next_of(waiting)) is not None:
                waiting.remove(entry)
                _start(entry, workers, floats)
                running[entry.folder] = entry
                observe(entry)
            for folder, outcome in workers.finished():
                entry = running.pop(folder)
                if _end(entry, outcome) and not stopping:
                    waiting.appendleft(entry)
                observe(entry)
            observe(None)
            if running:
                time.sleep(seconds)
    except BaseException as error:
        workers.stop(now=isinstance(error, KeyboardInterrupt))  # a second Ctrl-C
        for entry in running.values():
            entry.state = State.INTERRUPTED
        raise


def _start(entry: Entry, workers: Workers, floats: SharedFloatNetworks) -> None:
    # The recipe is written again, too: what may differ, such as the folder of the data, is as asked for.
    prepare(entry.folder, entry.run.recipe)
    floats.give(entry)
    entry.state, entry.started = State.RUNNING, time.monotonic()
    workers.start(entry.folder)


def _end(entry: Entry, outcome: Outcome) -> bool:
    """Note how a run has ended; returns whether it is to be started again."""
    assert entry.started is not None
    entry.seconds = time.monotonic() - entry.started
    entry.reason = outcome.reason
    if outcome.ending is Ending.DONE:
        entry.result = finished_result(entry.folder)
        entry.state = State.FAILED if entry.result is None else State.DONE
        entry.reason = "it ended without a result" if entry.result is None else ""
    elif outcome.ending is Ending.INTERRUPTED:
        entry.state = State.INTERRUPTED
    elif outcome.ending is Ending.LOST and entry.losses + 1 < MOST_LOSSES:
        entry.losses += 1
        entry.state = State.WAITING
        return True
    else:
        entry.state = State.FAILED
    return False
