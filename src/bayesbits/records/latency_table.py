"""The `LatencyTable`: the measured milliseconds of a network's layers on one machine, from which plans are predicted.

A row is one measurement, by a name that says what was measured. A layer names the rows that belong to it, so that
layers of the same shape share them. `deploy.onnx.measure` writes it, and `cost.latency` computes the milliseconds of a
plan from it. It is plain data with a versioned JSON form; while it is being measured, rows are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bayesbits.records.serialization import Record
from bayesbits.records.topology import Topology

CODES, NUMBERS, FLOAT = FORMS = ("codes", "numbers", "float")
"""The forms of a layer: integer arithmetic that emits codes, integer arithmetic that emits numbers, and float."""

NARROW_BITS = 8
"""Up to this width a tensor is carried in bytes, and layers compute in integers."""
ROUNDED_BITS = 24
"""Up to this width a float tensor is rounded to its grid, which takes time of its own."""
KINDS = (NARROW_BITS, 16, 32)
"""A width of each kind of activation: in bytes, rounded, and in float."""


@dataclass(frozen=True)
class LayerShape:
    """One layer: what it computes, and where its rows are."""

    name: str
    """The layer's name in the network."""
    kernel: str
    """What is measured for it, in words; layers of the same shape have the same one."""
    weight_shape: tuple[int, ...]
    """The shape of its weight in the network, with all channels."""
    macs: int
    """The multiply-accumulates in the network, with all channels."""
    forms: tuple[str, ...]
    """The forms that it can have under the spec: "codes", "numbers" and "float"."""
    emits: str | None
    """The tensor whose codes it emits where that has at most 8 bits; None where it always emits numbers."""
    in_counts: tuple[int, ...]
    """The numbers of input channels that are measured, increasing; () where they are those of the output channels."""
    out_counts: tuple[int, ...]
    """The numbers of output channels that are measured, increasing."""
    in_elements: int
    """The elements of its input for the example, in all calls."""
    out_elements: int
    """The elements of its output for the example, in all calls."""
    image: bool
    """Whether it is a convolution: between integers and float its tensors change their layout, too."""
    calls: int
    """How often it runs in one forward pass."""

    def rows(self) -> Iterator[str]:
        """The names of all rows that it needs."""
        for form in self.forms:
            for inputs in self.in_counts or (0,):
                for outputs in self.out_counts:
                    yield self.row(form, inputs, outputs)
        if FLOAT in self.forms and len(self.forms) > 1:
            for what, elements in self.conversions().items():
                yield from (conversion_row(what, 1, image=False), conversion_row(what, elements, self.image))

    def conversions(self) -> dict[str, int]:
        """The elements that a quantizer behind the layer has, and a dequantizer in front of it."""
        return {"quantize": self.out_elements, "dequantize": self.in_elements}

    def row(self, form: str, inputs: int, outputs: int) -> str:
        """The name of the row of a form with these numbers of channels."""
        return f"{self.kernel}, {form}, {outputs if not self.in_counts else inputs} to {outputs}"


@dataclass(frozen=True)
class Overhead:
    """What a whole network takes beyond its layers, with activations of one kind and a part of the channels."""

    bits: int
    """The width of the activations, one of 8, 16 and 32."""
    share: float
    """The part of the elements of the layers' inputs that is left, from 0 to 1."""
    network_ms: float
    """The milliseconds of the whole network."""
    ms: float
    """The milliseconds beyond those of its layers, which can be below zero where layers are faster together."""


@dataclass(frozen=True)
class LatencyTable(Record):
    """The measured milliseconds of a network's layers in a runtime on one machine; it predicts those of a plan.

    `bb.measure` and `bayesbits measure` write it. `bb.Budget(latency_ms=2.5, table=table)` limits the milliseconds that
    it predicts, and `compressor.cost(plan, table).latency_ms` says them. `save` writes it to a file and
    `LatencyTable.load` reads it.

    Args:
        cpu: The processor that it was measured on.
        runtime: The runtime and its version.
        threads: The number of threads that a layer may use.
        layers: The layers of the network, and which rows are theirs.
        rows: The milliseconds of every measurement, by what was measured.
        overheads: What whole networks take beyond their layers: additions, poolings, quantizers, and the call itself.
        version: The version of the JSON form.

    Example::

        >>> import torch, bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
        >>> table = bb.measure(model, torch.randn(1, 8), bb.Spec(bits=(4, 8)), rounds=2)
        >>> compressor = bb.attach(model, torch.randn(1, 8), bb.Spec(bits=(4, 8)))
        >>> compressor.cost(compressor.plan(), table).latency_ms > 0
        True
    """

    VERSION: ClassVar[int] = 1

    def __deepcopy__(self, memo: dict[int, Any]) -> LatencyTable:
        return self  # it cannot change

    cpu: str
    """The processor that it was measured on."""
    runtime: str
    """The runtime and its version."""
    threads: int
    """The number of threads that a layer may use."""
    layers: tuple[LayerShape, ...]
    """The layers of the network, in running order."""
    rows: Mapping[str, float]
    """The milliseconds of every measurement, by what was measured."""
    overheads: tuple[Overhead, ...] = ()
    """What whole networks take beyond their layers; the last thing to be measured."""
    version: int = VERSION
    """The version of the JSON form."""

    def missing(self) -> list[str]:
        """The rows that are not measured yet, each once."""
        return list(dict.fromkeys(row for layer in self.layers for row in layer.rows() if row not in self.rows))

    def check(self, topology: Topology) -> None:
        """Raise a ValueError where rows are missing, or where the table is that of another network."""
        if self.missing() or not self.overheads:
            raise ValueError(
                f"this latency table is not finished: {len(self.missing())} rows and {len(self.overheads)} overheads. "
                "Start the same `bayesbits measure` again; it goes on where it was stopped"
            )
        measured = {layer.name: layer for layer in self.layers}
        way_out = "Measure this network: bayesbits measure NETWORK --output table.json"
        for layer in topology.layers:
            found = measured.pop(layer.name, None)
            if found is None:
                raise ValueError(f"this latency table is of another network: it has no layer {layer.name!r}. {way_out}")
            if (found.weight_shape, found.macs) != (layer.weight_shape, layer.macs):
                raise ValueError(
                    f"this latency table is of another network: its {layer.name!r} has a weight of "
                    f"{_shape(found.weight_shape)} and {found.macs:,} MACs, and here it is "
                    f"{_shape(layer.weight_shape)} and {layer.macs:,}. {way_out}"
                )
        if measured:
            raise ValueError(
                f"this latency table is of another network, which has the layer {next(iter(measured))!r} too. {way_out}"
            )

    def kinds(self) -> tuple[int, ...]:
        """The widths of activations for which overheads are measured, increasing."""
        return tuple(sorted({overhead.bits for overhead in self.overheads}))

    @property
    def machine(self) -> str:
        """The processor, the runtime and the threads, in words."""
        return f"{self.cpu}, {self.runtime}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def conversion_row(what: str, elements: int, image: bool) -> str:
    """The name of the row of a quantizer or a dequantizer of so many elements, of images or of rows of numbers."""
    return f"{what} {elements} elements{' of images' if image else ''}"


def kind_of(bits: int) -> int:
    """The kind of an activation of this width, one of `KINDS`."""
    return KINDS[0] if bits <= NARROW_BITS else KINDS[1] if bits <= ROUNDED_BITS else KINDS[2]


def _shape(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))
