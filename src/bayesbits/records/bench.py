"""The `Bench` of a run: what `bayesbits bench` measured of the float network and of the ONNX files, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesbits.records.serialization import Record


@dataclass(frozen=True)
class FileTime:
    """The time of one file at one batch size."""

    name: str
    """"float", "fast" or "compact" in onnxruntime, "openvino float" or "openvino qdq" in OpenVINO."""
    threads: int | None
    """How many threads a layer may use; None: the runtime's default."""
    batch: int
    """The number of examples in a call."""
    seconds: float
    """The time of the fastest call."""
    bytes: int
    """The size of the file."""


@dataclass(frozen=True)
class KernelTime:
    """The time of one layer in the fast and in the float file, with one thread and one example."""

    layer: str
    """The name of the layer."""
    kernel: str
    """The operation of the fast file."""
    seconds: float
    """Its time in the fast file."""
    float_seconds: float
    """Its time in the float file."""


@dataclass(frozen=True)
class Bench(Record):
    """Times and sizes of the files of a run.

    Args:
        cpu: The processor.
        runtime: The runtime with its version; both of them, where OpenVINO was measured too.
        rounds: How many times every file ran; the fastest counts.
        files: The time of every file, number of threads and batch size.
        layers: The time of every layer that is found in both files.
        version: The version of the JSON form.
    """

    VERSION: ClassVar[int] = 1

    cpu: str
    """The processor."""
    runtime: str
    """The runtime with its version; both of them, where OpenVINO was measured too."""
    rounds: int
    """How many times every file ran; the fastest counts."""
    files: tuple[FileTime, ...]
    """The time of every file, number of threads and batch size."""
    layers: tuple[KernelTime, ...]
    """The time of every layer that is found in both files."""
    version: int = VERSION
    """The version of the JSON form."""
