"""The process that runs a recipe: its device, its rank among the processes of torchrun, and versions of packages."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch

from bayesbits.training import FinetuneConfig, SearchConfig

Config = TypeVar("Config", bound=SearchConfig | FinetuneConfig)

_WITHOUT_GPU: dict[str, Any] = {"precision": "float32", "channels_last": False, "compile": False, "cuda_graph": False}


@dataclass(frozen=True)
class Process:
    """One process and its device."""

    device: torch.device
    """The device that the network runs on."""
    rank: int = 0
    """The rank of this process; the first one, 0, writes files and messages."""
    world_size: int = 1
    """The number of processes that train together, as torchrun started them."""

    @property
    def first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    @property
    def description(self) -> str:
        """The device in words."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.processor()
        count = f"{self.world_size} x " if self.world_size > 1 else ""
        return f"{count}{name or platform.machine()} ({self.device.type})"


def is_first_process() -> bool:
    """Whether this is the only process, or the first one that torchrun started."""
    return int(os.environ.get("RANK", 0)) == 0


def current_process(device: str | None = None) -> Process:
    """This process with the given device; without one, with its own GPU if there is one, or else with the CPU."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if device is None:
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"the device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    return Process(found, rank, world_size)


def config_for_device(config: Config, device: torch.device, say: Callable[[str], None], stage: str) -> Config:
    """The configuration, on other devices than a GPU without the settings for GPUs; `say` is told which are ignored."""
    ignored = [name for name, plain in _WITHOUT_GPU.items() if getattr(config, name) != plain]
    if device.type == "cuda" or not ignored:
        return config
    say(f"{stage}: {', '.join(ignored)} ignored, as there is no GPU")
    return replace(config, **{name: _WITHOUT_GPU[name] for name in ignored})


def versions() -> dict[str, str]:
    """The versions of the packages that a result was made with."""
    found = {"bayesbits": _own_version(), "python": platform.python_version(), "torch": str(torch.__version__)}
    return found | ({"cuda": str(torch.version.cuda)} if torch.cuda.is_available() else {})


def _own_version() -> str:
    try:
        return version("bayesbits")
    except PackageNotFoundError:  # run from its sources
        return "not installed"
