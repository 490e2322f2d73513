"""Checkpoints: written whole or not at all, and read without running anything.

A file is one line that says what it is, with the version of the form and a digest of the rest, and behind it a dict of
tensors and plain values in torch's own form. It is written beside its place and moved there when it is on the disk, so
that a crash, a kill or a full disk leaves the one before. Reading checks the digest, and that the checkpoint belongs to
the training that wants to go on from it.
"""

import hashlib
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesbits.training.errors import CheckpointError
from bayesbits.training.sharding import dealt_out
from bayesbits.utils.files import write_atomically

VERSION = 1
_MAGIC = b"bayesbits checkpoint"
_HEADER_LIMIT = 200


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint in the place of the one before."""
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    payload = buffer.getbuffer()
    header = b"%s %d %s\n" % (_MAGIC, VERSION, hashlib.sha256(payload).hexdigest().encode())
    try:
        write_atomically(path, header, payload)
    except OSError as error:
        before = "the one before it is intact" if path.exists() else "there is none before it"
        raise CheckpointError(
            f"the checkpoint {path} could not be written ({error}); {before}. Make room or choose another folder, and "
            "go on with resume=True"
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint holds; a CheckpointError that names the file and says what is wrong with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error}") from error
    header, newline, _ = data[:_HEADER_LIMIT].partition(b"\n")
    words = header.removeprefix(_MAGIC).split()
    if not header.startswith(_MAGIC) or not newline or len(words) != 2 or not words[0].isdigit():
        raise CheckpointError(f"{path} is not a checkpoint of bayesbits, or its beginning is damaged")
    if int(words[0]) != VERSION:
        raise CheckpointError(
            f"{path} is a checkpoint of version {int(words[0])}, and this library reads version {VERSION}: "
            "go on with the version of bayesbits that wrote it"
        )
    payload = memoryview(data)[len(header) + 1 :]
    if hashlib.sha256(payload).hexdigest().encode() != words[1]:
        raise CheckpointError(f"{path} is damaged: its contents are not what was written (cut off, or changed)")
    try:
        content = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} holds what cannot be read without running code: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, where a checkpoint is a dict")
    return content


def check_belongs(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise, naming the first difference, unless a checkpoint was written by the training that `wanted` describes."""
    difference = first_difference(found, wanted)
    if difference is not None:
        raise CheckpointError(
            f"{path} is of another training: {difference}. Go on with what it was started with, or start anew in "
            "another folder"
        )


def first_difference(found: Any, wanted: Any, where: str = "") -> str | None:
    """The first place in which two descriptions differ, in words; None where they are equal."""
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
    return None if found == wanted else f"{where} is {_short(found)} in the checkpoint and {_short(wanted)} here"


def load_model(path: Path, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Give a network the state of a checkpoint; an error that names the first key that does not fit, before any is."""
    own = model.state_dict()
    for key in [*own, *(key for key in state if key not in own)]:
        if key not in own or key not in state:
            raise CheckpointError(
                f"{path} does not fit the network: {key!r} is only in {'the file' if key in state else 'the network'}"
            )
        shapes = [tuple(getattr(one[key], "shape", ())) for one in (state, own)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(f"{path} does not fit the network: {key!r} has shape {shapes[0]}, not {shapes[1]}")
    model.load_state_dict({key: dealt_out(value, own[key]) for key, value in state.items()})


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
