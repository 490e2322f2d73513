"""One run of a sweep in a process of its own: `bayesbits search` in the run's folder, which goes on where it was.

    python -m bayesbits.cli.sweep_run FOLDER PARENT [DEVICE]

The process ends, with a checkpoint, where the sweep that started it is gone. A run that another process still works on
is waited for, so that two never write to one folder.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from bayesbits.cli.console import print_status
from bayesbits.cli.main import app
from bayesbits.recipes.run_folder import LOG, RECIPE
from bayesbits.sweeps.local_processes import LocalProcesses
from bayesbits.sweeps.workers import START

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is waited for
    fcntl = None  # type: ignore[assignment]

_SECONDS = 1.0  # between two looks at the parent


def command_of(folder: Path, device: str | None) -> list[str]:
    """The command that runs the run in a folder, as a child of this process."""
    device_option = [device] if device is not None else []
    return [sys.executable, "-m", "bayesbits.cli.sweep_run", str(folder), str(os.getpid()), *device_option]


def local_processes(jobs: int, device: str | None) -> LocalProcesses:
    """What runs searches as processes of this machine, all on one device where one is given."""
    gpus = None if device is None else 0  # a device that was chosen is not replaced
    return LocalProcesses(jobs, partial(command_of, device=device), gpus)


def run_in(folder: str, device: str | None = None) -> int:
    """Run `bayesbits search` for the recipe in a folder; returns the exit code."""
    options = [] if device is None else ["--device", device]
    with _alone(Path(folder)):
        print_status(f"{START}{datetime.now():%Y-%m-%d %H:%M:%S} on {socket.gethostname()}, process {os.getpid()}")
        try:
            app(["search", str(Path(folder) / RECIPE), "--resume", *options], prog_name="bayesbits")
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Inside, no other process runs the run in this folder: it is waited for. A process that dies unlocks it."""
    with (folder / LOG).open("ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print_status("another process works on this run; it is waited for")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # a file system without locks
                pass
        yield


def _end_with(parent: int) -> None:
    """Ask this process to end once its parent is another one, as the one that started it has died."""
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    print_status("the sweep that started this run is gone; the run ends, too")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    sys.exit(run_in(sys.argv[1], *sys.argv[3:]))
