"""The places of an ONNX file that stand for places of the deployed network; written into the file, read by `verify`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

KEY = "bayesbits"


@dataclass(frozen=True)
class Checkpoint:
    """One tensor that both the deployed network and the file compute."""

    node: str
    """The node of the deployed program that makes it."""
    kind: str
    """What makes it: "Layer" or "Quantize"."""
    of: str
    """The layer's or grid's name."""
    value: str
    """The tensor's name in the file."""
    zero_point: int | None
    """What the file adds to the codes; None where it holds numbers."""


def write_checkpoints(model: ModelProto, checkpoints: Sequence[Checkpoint]) -> None:
    """Put the checkpoints into the file's metadata."""
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps([asdict(checkpoint) for checkpoint in checkpoints])


def read_checkpoints(model: ModelProto) -> tuple[Checkpoint, ...]:
    """The checkpoints of a file."""
    for entry in model.metadata_props:
        if entry.key == KEY:
            return tuple(Checkpoint(**fields) for fields in json.loads(entry.value))
    raise ValueError(
        "this ONNX file was not written by bayesbits.export_onnx: it names no layers of a deployed network"
    )
