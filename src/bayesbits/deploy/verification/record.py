"""What `verify` found: a record, and its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesbits.records import Record

TOLERANCE = 1e-4
"""The relative error that is float rounding."""


class VerificationError(AssertionError):
    """Simulation, deployed network and runtime do not agree; the message names the first place where they differ."""


@dataclass(frozen=True)
class Machine:
    """Where the runtime ran."""

    cpu: str
    """The processor's model."""
    integer_instructions: tuple[str, ...]
    """Those of its instructions that integer kernels use, such as "avx512_vnni"; without a kind of VNNI, products of
    unsigned and signed bytes may saturate."""
    runtime: str
    """The runtime and its version."""


@dataclass(frozen=True)
class Place:
    """One tensor that deployed network and runtime both compute."""

    name: str
    """The layer, the quantized tensor, or the output."""
    kind: str
    """"layer", "quantizer" or "output"."""
    exact: bool
    """Whether it has to be equal bit by bit; otherwise float operations lie in front of it."""
    values: int
    """How many values were compared."""
    differing: int
    """How many differ where the runtime is fed the deployed network's own values in front of this place."""
    differing_end_to_end: int
    """How many differ where the runtime ran from the network's inputs on."""
    relative_error: float
    """The largest difference of numbers, as a part of the largest number, fed the deployed network's own values."""


@dataclass(frozen=True)
class Kernel:
    """What the runtime made of a layer."""

    layer: str
    operation: str
    """The operation in the optimised graph, such as "QLinearConv"."""
    integer: bool
    reason: str | None
    """Why it does not run in integers; None where it does."""


@dataclass(frozen=True)
class Simulated:
    """The trained simulation against the deployed network."""

    inputs: int
    codes: int
    """How many codes of layers' inputs were compared."""
    differing_codes: int
    largest_error: float
    """Of the output."""
    flipped: int
    """How many decisions differ."""
    largest_flipped_margin: float
    """Of the flipped decisions, how far the best was in front of the second in the simulation."""
    margin_error: float
    """Where decisions agree, by how much the distance between two outputs of an input is off at most."""


@dataclass(frozen=True)
class Verification(Record):
    """What was found; everything that must be equal was equal, or `verify` would have raised."""

    VERSION: ClassVar[int] = 1

    machine: Machine
    places: tuple[Place, ...]
    kernels: tuple[Kernel, ...]
    simulated: Simulated
    weights: int
    """How many codes of weights were read from the file and found equal."""
    biases: int
    """How many biases."""
    version: int = VERSION
    """The version of the JSON form."""

    @property
    def integer_layers(self) -> tuple[str, ...]:
        """The layers that run in integers."""
        return tuple(kernel.layer for kernel in self.kernels if kernel.integer)

    def __str__(self) -> str:
        exact = [place for place in self.places if place.exact]
        close = [place for place in self.places if not place.exact]
        sim, machine = self.simulated, self.machine
        lines = [
            f"{machine.runtime} on {machine.cpu} ({', '.join(machine.integer_instructions) or 'nothing special'})",
            f"weights            {self.weights:,} codes and {self.biases:,} biases in the file, all equal",
            f"exact places       {len(exact)} with {sum(place.values for place in exact):,} values, "
            f"{sum(place.differing for place in exact)} differ",
        ]
        if close:
            lines.append(
                f"behind float       {len(close)} places, {sum(place.differing for place in close)} of "
                f"{sum(place.values for place in close):,} values differ, relative error at most "
                f"{max(place.relative_error for place in close):.1e}"
            )
        lines.append(
            f"simulation         {sim.differing_codes:,} of {sim.codes:,} codes differ, output by at most "
            f"{sim.largest_error:.1e}; {sim.flipped} of {sim.inputs:,} decisions flipped"
        )
        lines.append(f"integer kernels    {len(self.integer_layers)} of {len(self.kernels)} layers")
        lines += [
            f"  {kernel.layer}: {kernel.operation}, {kernel.reason}" for kernel in self.kernels if not kernel.integer
        ]
        return "\n".join(lines)
