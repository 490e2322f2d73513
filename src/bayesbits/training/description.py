"""What a training is, as plain data: a checkpoint keeps it, and only the same training may go on from it."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from bayesbits.compression.compressor import Compressor
from bayesbits.records.plan import Plan
from bayesbits.training.config import FinetuneConfig, SearchConfig

_FREE = ("checkpoint_seconds", "log_steps", "evaluate_epochs", "compile", "cuda_graph")
"""What may change when training goes on: how it is watched and run, not what it computes."""


def describe(
    phase: str,
    compressor: Compressor,
    config: SearchConfig | FinetuneConfig,
    plan: Plan | None,
    *,
    batches: int | None,
    world: int,
) -> dict[str, Any]:
    """Phase, network, spec, configuration, plan and data of a training, in values that JSON has."""
    return {
        "phase": phase,
        "topology": json.loads(compressor.topology.to_json()),
        "spec": _plain(asdict(compressor.spec)),
        "config": {name: value for name, value in _plain(asdict(config)).items() if name not in _FREE},
        "plan": None if plan is None else json.loads(plan.to_json()),
        "batches in an epoch": batches,
        "processes": world,
    }


def versions() -> dict[str, str]:
    """What a checkpoint was written with; for people, nothing is checked."""
    try:
        own = version("bayesbits")
    except PackageNotFoundError:
        own = "not installed"
    return {"bayesbits": own, "torch": str(torch.__version__), "python": platform.python_version()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
