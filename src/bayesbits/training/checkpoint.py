"""Checkpoints: written completely or not at all, read without running code, and checked before training resumes.

A file begins with one line that holds the version of the format and a digest of the rest. Behind it lies a dict of
tensors and plain values, as `torch.save` writes it. The file is written beside its final place and moved there once it
is on the disk, so that a crash, a kill or a full disk leaves the previous checkpoint intact. Every checkpoint holds a
description of the training that wrote it, and only the same training may resume from it.
"""

import hashlib
import io
import json
import pickle
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesbits.compression.compressor import Compressor
from bayesbits.records.plan import Plan
from bayesbits.training.config import FinetuneConfig, SearchConfig
from bayesbits.training.distributed import load_full_model_state
from bayesbits.training.errors import CheckpointError
from bayesbits.utils.files import write_atomically

VERSION = 2  # 1: learning rates were called "rate" and optimizers "kind"
_MAGIC = b"bayesbits checkpoint"
_HEADER_LIMIT = 200
# What may change between the interruption and the resume: how training is logged and executed, not what it computes.
_NOT_COMPARED = ("checkpoint_seconds", "log_steps", "evaluate_epochs", "compile", "cuda_graph")


def describe_training(
    phase: str,
    compressor: Compressor,
    config: SearchConfig | FinetuneConfig,
    plan: Plan | None,
    *,
    batches: int | None,
    world_size: int,
) -> dict[str, Any]:
    """Phase, network, spec, configuration, plan and data of a training, in values that JSON has."""
    return {
        "phase": phase,
        "topology": json.loads(compressor.topology.to_json()),
        "spec": _to_plain(asdict(compressor.spec)),
        "config": {name: value for name, value in _to_plain(asdict(config)).items() if name not in _NOT_COMPARED},
        "plan": None if plan is None else json.loads(plan.to_json()),
        "batches in an epoch": batches,
        "processes": world_size,
    }


def versions() -> dict[str, str]:
    """The versions that a checkpoint was written with; they are for people, and nothing compares them."""
    try:
        own = version("bayesbits")
    except PackageNotFoundError:
        own = "not installed"
    return {"bayesbits": own, "torch": str(torch.__version__), "python": platform.python_version()}


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint; it replaces the previous one."""
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    payload = buffer.getbuffer()
    header = b"%s %d %s\n" % (_MAGIC, VERSION, hashlib.sha256(payload).hexdigest().encode())
    try:
        write_atomically(path, header, payload)
    except OSError as error:
        previous = "the previous one is intact" if path.exists() else "there is no previous one"
        raise CheckpointError(
            f"the checkpoint {path} could not be written ({error}); {previous}. Free some space or choose another "
            "folder, and call again with resume=True"
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint; a CheckpointError names the file and its fault."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error}") from error
    header, newline, _ = data[:_HEADER_LIMIT].partition(b"\n")
    words = header.removeprefix(_MAGIC).split()
    if not header.startswith(_MAGIC) or not newline or len(words) != 2 or not words[0].isdigit():
        raise CheckpointError(f"{path} is not a checkpoint of bayesbits, or its beginning is damaged")
    if int(words[0]) != VERSION:
        why = " (its learning rates are called 'rate' and its optimizers 'kind')" if int(words[0]) == 1 else ""
        raise CheckpointError(
            f"{path} is a checkpoint of version {int(words[0])}{why}, and this library reads version {VERSION}: resume "
            "with the version of bayesbits that wrote it, or start again in another folder"
        )
    payload = memoryview(data)[len(header) + 1 :]
    if hashlib.sha256(payload).hexdigest().encode() != words[1]:
        raise CheckpointError(f"{path} is damaged: its content is not what was written (truncated or changed)")
    try:
        content = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} holds objects that cannot be read without running code: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, where a checkpoint is a dict")
    return content


def check_description(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise with the first difference unless a checkpoint was written by the training that `wanted` describes."""
    difference = first_difference(found, wanted)
    if difference is not None:
        raise CheckpointError(
            f"{path} was written by another training: {difference}. Resume with what it was started with, or start "
            "again in another folder"
        )


def first_difference(found: Any, wanted: Any, where: str = "") -> str | None:
    """A sentence about the first place in which two descriptions differ; None where they are equal."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in found or key not in wanted:
                return f"{place} is only in {'the checkpoint' if key in found else 'this training'}"
            difference = first_difference(found[key], wanted[key], place)
            if difference is not None:
                return difference
        return None
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            difference = first_difference(one, other, f"{where}[{index}]")
            if difference is not None:
                return difference
        return None
    return None if found == wanted else f"{where} is {_shorten(found)} in the checkpoint and {_shorten(wanted)} here"


def load_model(path: Path, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load the state of a checkpoint into a network; an error names the first key that does not fit, before loading."""
    own = model.state_dict()
    for key in [*own, *(key for key in state if key not in own)]:
        if key not in own or key not in state:
            raise CheckpointError(
                f"{path} does not fit the network: {key!r} is only in {'the file' if key in state else 'the network'}"
            )
        shapes = [tuple(getattr(one[key], "shape", ())) for one in (state, own)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(f"{path} does not fit the network: {key!r} has shape {shapes[0]}, not {shapes[1]}")
    load_full_model_state(model, state)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_plain(entry) for key, entry in value.items()}
    return [_to_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
