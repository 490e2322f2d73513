"""Runs of a sweep as tasks of a Ray cluster, one process for each, with a share of the cluster's cores and GPUs.

All machines of the cluster see the folder of the sweep and the working directory under the same paths, and have
bayesbits installed. A run whose machine or process dies goes on elsewhere from its checkpoint: `scheduler` starts it
again.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from bayesbits.recipes.run_folder import LOG
from bayesbits.sweeps.workers import Ending, Outcome, outcome_of
from bayesbits.utils.optional_packages import require_packages

_SECONDS = 10.0  # to reach a cluster

Work = Callable[[str], int]
"""Runs the run in a folder in this process, and returns the exit code."""


class RayTasks:
    """Runs up to `jobs` tasks at a time; by default one for each GPU of the cluster, or for each core."""

    def __init__(self, address: str, jobs: int | None, work: Work) -> None:
        require_packages("a sweep on a Ray cluster", "ray")
        ray: Any = import_module("ray")
        self._ray = ray
        try:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=False, include_dashboard=None, configure_logging=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(f"there is no Ray cluster at {address!r} (--ray): {error}") from error
        resources = ray.cluster_resources()
        self.jobs = jobs or int(resources.get("GPU", 0) or resources.get("CPU", 1))
        share = shares(resources.get("CPU", 1), resources.get("GPU", 0), self.jobs)
        environment = {"OMP_NUM_THREADS": str(share["num_cpus"]), "MKL_NUM_THREADS": str(share["num_cpus"])}
        # A process of its own for each run; lost ones are started again by the sweep, which says so.
        options = {"max_calls": 1, "max_retries": 0, "runtime_env": {"env_vars": environment}, **share}
        self._remote = ray.remote(**options)(run_in_task)
        self._work = work
        self._tasks: dict[Any, Path] = {}

    @property
    def free(self) -> int:
        """How many more runs can be started now."""
        return self.jobs - len(self._tasks)

    def start(self, folder: Path) -> None:
        """Submit the run in a folder."""
        self._tasks[self._remote.remote(str(folder.absolute()), os.getcwd(), self._work)] = folder

    def finished(self) -> list[tuple[Path, Outcome]]:
        """The runs that have ended since the last call."""
        if not self._tasks:
            return []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        return [(folder, self._outcome(task, folder)) for task in ready for folder in (self._tasks.pop(task),)]

    def _outcome(self, task: Any, folder: Path) -> Outcome:
        errors = self._ray.exceptions
        try:
            return outcome_of(self._ray.get(task), folder)
        except errors.TaskCancelledError:
            return Outcome(Ending.INTERRUPTED, "stopped")
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            return Outcome(Ending.LOST, f"its worker died ({type(error).__name__})")
        except errors.RayError as error:
            return Outcome(Ending.FAILED, f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")

    def stop(self, *, now: bool = False) -> None:
        """End all runs: after they have written a checkpoint, or now."""
        for task in self._tasks:
            self._ray.cancel(task, force=now)

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise an OSError where nobody listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()


def shares(cores: float, gpus: float, jobs: int) -> dict[str, float | int]:
    """The cores and the GPUs of each of several tasks: at least one core, at most one GPU."""
    share: dict[str, float | int] = {"num_cpus": max(1, int(cores // jobs))}
    return share | ({"num_gpus": min(1.0, gpus / jobs)} if gpus else {})


def run_in_task(folder: str, working_directory: str, work: Work) -> int:
    """What a task does: the run, with what it prints appended to its log."""
    os.chdir(working_directory)
    with open(Path(folder) / LOG, "ab") as log:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        saved = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in saved:
                os.dup2(log.fileno(), number)
            return work(folder)
        finally:
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)
