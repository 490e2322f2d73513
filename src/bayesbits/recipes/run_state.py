"""The state of a run that is not finished: which process runs it, or the error that ended it, in `state.json`.

The file is written when a run starts and when an error ends it, and removed when the run is finished. A process that is
killed writes nothing more: that it is not there any more shows that.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from bayesbits.records.serialization import Record
from bayesbits.training import Interrupted

STATE = "state.json"
RUNNING, FAILED, INTERRUPTED, KILLED, UNKNOWN = "running", "failed", "interrupted", "killed", "unknown"
_ENDED = (FAILED, INTERRUPTED, KILLED)
_MOST_FRAMES = 12  # of a traceback, the innermost ones


@dataclass(frozen=True)
class RunState(Record):
    """The process of a run, and the error that ended it."""

    VERSION: ClassVar[int] = 1

    process: int
    """The number of the process."""
    host: str
    """The machine that it runs on."""
    born: str
    """When the process started, in the words of the operating system: another one may have its number later."""
    command: str
    """The command that goes on with the run."""
    started: str
    """When the run started, in UTC."""
    ended: str = ""
    """When the error ended it."""
    error: str = ""
    """What went wrong; empty while it runs."""
    interrupted: bool = False
    """Whether a signal or Ctrl-C ended it."""
    traceback: str = ""
    """Where it went wrong: the innermost calls."""
    stage: str = ""
    """What the process does where that is no stage of training, such as "post-training"; empty where it trains."""
    points: int = 0
    """How many points this stage leads to."""
    version: int = VERSION
    """The version of the JSON form."""

    @property
    def status(self) -> str:
        """Either "running", "failed", "interrupted", "killed", or "unknown" where it started on another machine."""
        if self.ended:
            return INTERRUPTED if self.interrupted else FAILED
        if self.host != socket.gethostname():
            return UNKNOWN
        return RUNNING if _born(self.process) == self.born else KILLED

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be written to the folder, unless somebody goes on with the run."""
        return self.status in _ENDED

    @property
    def words(self) -> str:
        """What became of the run, as a sentence without its end; the error is a part of it."""
        who = f"process {self.process} on {self.host}"
        return {
            RUNNING: f"{who} has been running it since {self.started}",
            FAILED: f"it failed at {self.ended}: {self.error}",
            INTERRUPTED: f"it was interrupted at {self.ended}: {self.error}",
            KILLED: f"{who} was killed, as it is gone without an error; a common reason is too little memory",
            UNKNOWN: f"{who} began it at {self.started}, and from here one cannot see whether it still runs",
        }[self.status]


def load_state(folder: Path) -> RunState | None:
    """The state of the run in a folder; None where there is none, or none that can be read."""
    try:
        return RunState.load(folder / STATE)
    except (OSError, ValueError):
        return None


@contextmanager
def recorded(folder: Path, command: str, stage: str = "", points: int = 0) -> Iterator[None]:
    """Inside, the folder says that this process runs; an error is kept there, and after the end there is nothing.

    `stage` and `points` as in `RunState`.
    """
    born = _born(os.getpid())
    state = RunState(os.getpid(), socket.gethostname(), born, command, _now(), stage=stage, points=points)
    state.save(folder / STATE)
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # of a full disk; the error itself is what counts
            failed(state, error).save(folder / STATE)
        raise
    with suppress(OSError):
        (folder / STATE).unlink()


def failed(state: RunState, error: BaseException) -> RunState:
    """The state after an error."""
    interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
    message = error.saved if isinstance(error, Interrupted) else str(error)
    name = type(error).__name__
    message = message or ("stopped before the end" if interrupted else f"a {name} without a message")
    frames = traceback.format_exception(error, limit=-_MOST_FRAMES, chain=False)
    return replace(
        state, ended=_now(), error=message if interrupted or name in message else f"{name}: {message}",
        interrupted=interrupted, traceback="" if interrupted else "".join(frames),
    )  # fmt: skip


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _born(process: int) -> str:
    """When a process started; empty where it is gone, and "?" where the system does not say."""
    if not Path("/proc/self/stat").exists():
        return "?"
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]  # a zombie has ended, and nobody asked how
