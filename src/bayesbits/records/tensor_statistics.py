"""The `TensorStatistics` of a network: histograms of its tensors, what rounding does to them, and the error by layer.

`compression.measure_statistics` measures them on a few examples, `deploy.layer_errors` adds the errors of the deployed
network, and the report shows them. Infinite numbers are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from bayesbits.records.serialization import Record, freeze_mappings


@dataclass(frozen=True)
class Histogram:
    """The values of one tensor, and what rounding to a width does to them."""

    name: str
    """The name of the tensor."""
    bits: int
    """Its final width."""
    low: float
    """The lower end of its range; -1 or 0 where the values are relative to the range of their channel."""
    high: float
    """The upper end of its range; 1 where the values are relative to the range of their channel."""
    ranges: int
    """The number of ranges. Where it is above 1, every value was divided by the end of its channel's range."""
    first: float
    """Where the first bin begins."""
    last: float
    """Where the last bin ends."""
    counts: tuple[int, ...]
    """The number of values in each of the bins, which have the same width."""
    clipped: float
    """The percentage of values outside of the range."""
    signal_to_noise: Mapping[str, float | None]
    """By width in bits, the signal-to-noise ratio of rounding to it in dB; None: there is no error."""
    codes: int | None = None
    """The number of codes, where it is not that of the width: the range ends with them."""

    def __post_init__(self) -> None:
        freeze_mappings(self)


@dataclass(frozen=True)
class LayerError:
    """How far the output of a layer or of a product of two activations is from that of the network without rounding."""

    name: str
    """The name of the layer or product."""
    alone: float | None
    """The signal-to-noise ratio in dB where only this layer is rounded; None: there is no error."""
    together: float | None
    """The same where this layer and everything in front of it are rounded."""


@dataclass(frozen=True)
class TensorStatistics(Record):
    """Histograms and errors of a network with final widths, measured on a few examples.

    Args:
        examples: The number of examples.
        tensors: A histogram for every tensor that is quantized.
        layers: The errors of every layer and product of two activations that is quantized, in the order in which they
            run.
        output: The signal-to-noise ratio of the network's output in dB; None: there is no error, or no such tensor.
        deployed: The errors of the layers of the deployed network; empty where it was not measured.
        deployed_output: The signal-to-noise ratio of the deployed network's output in dB.
        version: The version of the JSON form.
    """

    VERSION: ClassVar[int] = 1

    examples: int
    """The number of examples."""
    tensors: tuple[Histogram, ...]
    """A histogram for every tensor that is quantized."""
    layers: tuple[LayerError, ...]
    """The errors of every layer and product of two activations that is quantized, in the order in which they run."""
    output: float | None = None
    """The signal-to-noise ratio of the network's output in dB; None: there is no error, or no such tensor."""
    deployed: tuple[LayerError, ...] = ()
    """The errors of the layers of the deployed network; empty where it was not measured."""
    deployed_output: float | None = None
    """The signal-to-noise ratio of the deployed network's output in dB."""
    version: int = VERSION
    """The version of the JSON form."""
