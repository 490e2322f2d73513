"""Which machine a run is on: its device, its place among processes, and settings that only a GPU has."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch

from bayesbits.training import FinetuneConfig, SearchConfig

Config = TypeVar("Config", bound=SearchConfig | FinetuneConfig)

_GPU_SETTINGS: dict[str, Any] = {"precision": "float32", "channels_last": False, "compile": False, "cuda_graph": False}


@dataclass(frozen=True)
class Machine:
    """One process and its device."""

    device: torch.device
    rank: int = 0
    """Which of the processes this is; the first one, 0, writes files and talks."""
    world: int = 1
    """How many processes train together, as torchrun started them."""

    @property
    def first(self) -> bool:
        """Whether this process writes and talks."""
        return self.rank == 0

    @property
    def described(self) -> str:
        """The device in words."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.processor()
        count = f"{self.world} x " if self.world > 1 else ""
        return f"{count}{name or platform.machine()} ({self.device.type})"


def is_first_process() -> bool:
    """Whether this is the process that writes and talks: the only one, or the first that torchrun started."""
    return int(os.environ.get("RANK", 0)) == 0


def find_machine(device: str | None = None) -> Machine:
    """This process; its device is the one asked for, or a GPU of its own, or the CPU."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if device is None:
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"the device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    return Machine(found, rank, world)


def fitting(config: Config, device: torch.device, say: Callable[[str], None], stage: str) -> Config:
    """The configuration without the settings that only a GPU has, where there is none; what is left out is said."""
    ignored = [name for name, plain in _GPU_SETTINGS.items() if getattr(config, name) != plain]
    if device.type == "cuda" or not ignored:
        return config
    say(f"{stage}: {', '.join(ignored)} ignored, as there is no GPU")
    return replace(config, **{name: _GPU_SETTINGS[name] for name in ignored})


def versions() -> dict[str, str]:
    """What a result was made with."""
    found = {"bayesbits": _own_version(), "python": platform.python_version(), "torch": str(torch.__version__)}
    return found | ({"cuda": str(torch.version.cuda)} if torch.cuda.is_available() else {})


def _own_version() -> str:
    try:
        return version("bayesbits")
    except PackageNotFoundError:  # run from its sources
        return "not installed"
