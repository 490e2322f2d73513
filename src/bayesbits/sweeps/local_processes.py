"""Runs of a sweep as processes of this machine, each with its share of the cores and of the GPUs.

Every process has a session of its own, so that Ctrl-C in the terminal reaches the sweep alone, which then ends its runs
in order. What a run prints is appended to `log.txt` in its folder.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from bayesbits.recipes.run_folder import LOG
from bayesbits.sweeps.workers import Outcome, outcome_of

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


class LocalProcesses:
    """Runs up to `jobs` processes at a time; `command` makes the command of the run in a folder."""

    def __init__(self, jobs: int, command: Callable[[Path], list[str]], gpus: int | None = None) -> None:
        self._jobs, self._command = jobs, command
        self._gpus = torch.cuda.device_count() if gpus is None else gpus
        self._processes: dict[int, tuple[Path, subprocess.Popen[bytes]]] = {}

    @property
    def free(self) -> int:
        """How many more runs can be started now."""
        return self._jobs - len(self._processes)

    def start(self, folder: Path) -> None:
        """Start the run in a folder, or continue it."""
        job = next(number for number in range(self._jobs) if number not in self._processes)
        environment = environment_of(job, self._jobs, os.environ, _cores(), self._gpus)
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                self._command(folder), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._processes[job] = folder, process

    def finished(self) -> list[tuple[Path, Outcome]]:
        """The runs that have ended since the last call."""
        ended = []
        for job, (folder, process) in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[job]
                ended.append((folder, outcome_of(code, folder)))
        return ended

    def stop(self, *, now: bool = False) -> None:
        """End all runs: after they have written a checkpoint, or now, with the processes that they have started."""
        for _, process in self._processes.values():
            if now:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            else:
                process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """There is nothing to release."""


def environment_of(job: int, jobs: int, environment: Mapping[str, str], cores: int, gpus: int) -> dict[str, str]:
    """The environment of one of several processes: its share of cores, its GPU, and caches of compilers of its own.

    What the user has set stays, but a list of GPUs is divided, and caches become folders within the given one.
    """
    found = dict(environment)
    for name in _THREADS:
        found.setdefault(name, str(max(1, cores // jobs)))
    if jobs == 1:
        return found
    if gpus > 1:
        visible = [entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
        devices = visible or [str(number) for number in range(gpus)]
        found["CUDA_VISIBLE_DEVICES"] = devices[job % len(devices)]
    temporary = Path(tempfile.gettempdir()) / f"bayesbits-sweep-{_user()}"
    for name, kind in _CACHES.items():
        found[name] = str(Path(environment.get(name) or temporary / kind) / f"job-{job}")
    return found


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return "user"
