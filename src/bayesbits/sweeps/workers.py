"""What runs the runs of a sweep, and how a run can end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Protocol

from bayesbits.recipes.run_folder import LOG

START = "--- "
"""The beginning of the line that a run writes to its log when it starts."""
_ERRORS = ("error: ", "unexpected error: ", "interrupted: ", "not equal: ")
_WAY_ON = "Go on with: "  # of a single run; a sweep goes on by its own command
_MOST_CHARACTERS = 400
_STOPPED = {-SIGINT, -SIGTERM, 128 + SIGINT, 128 + SIGTERM}
_KILLED = -9  # SIGKILL, which Windows does not have


class Ending(StrEnum):
    """How a run has ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    """Its process was killed, which says nothing about the run."""


@dataclass(frozen=True)
class Outcome:
    """How a run has ended, and why."""

    ending: Ending
    reason: str = ""


class Workers(Protocol):
    """Runs the runs of a sweep, several at a time."""

    @property
    def free(self) -> int:
        """How many more runs can be started now."""

    def start(self, folder: Path) -> None:
        """Start the run in a folder, or continue it."""

    def finished(self) -> list[tuple[Path, Outcome]]:
        """The runs that have ended since the last call."""

    def stop(self, *, now: bool = False) -> None:
        """End all runs: after they have written a checkpoint, or now."""

    def close(self) -> None:
        """Release what the workers hold; nothing is running any more."""


def outcome_of(code: int, folder: Path) -> Outcome:
    """How a run has ended, from the exit code of its process; negative for a signal, as in `subprocess`."""
    if code == 0:
        return Outcome(Ending.DONE)
    if code in _STOPPED:
        return Outcome(Ending.INTERRUPTED, "stopped")
    if code == _KILLED:
        return Outcome(Ending.LOST, "its process was killed (SIGKILL; by the system where memory ran out)")
    ended = f"ended by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return Outcome(Ending.FAILED, last_error(folder / LOG) or f"its process {ended}")


def last_error(log: Path) -> str:
    """The error message at the end of a run's log as one line; the log's last line where there is none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines()]
    first = max((place for place, line in enumerate(lines) if line.startswith(START)), default=-1)
    lines = [line for line in lines[first + 1 :] if line and not line.startswith(_WAY_ON)]
    said = next((place for place, line in enumerate(lines) if line.startswith(_ERRORS)), len(lines) - 1)
    message = " ".join(lines[max(0, said) :]).removeprefix("error: ")
    return message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]}..."
