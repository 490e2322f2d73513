"""What `verify` found: a record, and its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesbits.records.serialization import Record


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """A number of things, in words."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


class VerificationError(AssertionError):
    """Simulation, deployed network and runtime do not agree; the message names the first place where they differ."""

    found: Verification | None = None
    """What was found until then; its `failure` is the message."""


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
class Constant:
    """How many constants were compared, all of them equal: in the record with what plan and weights give."""

    weights: int = 0
    """Codes of weights, or weights that stay in float."""
    biases: int = 0
    grids: int = 0
    """Tensors of which step, bounds, sign and zero point were compared."""

    def __str__(self) -> str:
        if not self.weights:
            return "not all equal, or not compared"
        weights, biases = counted(self.weights, "weight"), counted(self.biases, "bias", "biases")
        return f"{weights}, {biases} and {counted(self.grids, 'grid')}, all equal"


@dataclass(frozen=True)
class Decisions:
    """Which entry is the largest along an axis of an output: in how many places it was compared, and is another."""

    of: int = 0
    """Among how many entries; 0 where the output has no such axis, and nothing was compared."""
    compared: int = 0
    flipped: int = 0

    def __str__(self) -> str:
        return "" if not self.of else f"; the largest of {self.of} differs in {self.flipped:,} of {self.compared:,}"


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
    relative_error: float
    """The largest difference of numbers, as a part of the largest number, fed the deployed network's own values."""
    differing_end_to_end: int
    """How many differ where the runtime ran from the network's inputs on; judged only where all in front is exact."""
    relative_error_end_to_end: float
    """The largest difference there, as a part of the largest number."""
    decisions_end_to_end: Decisions
    """Of an output."""
    output: str | None = None
    """The output of the file that it is; None where it is none."""


@dataclass(frozen=True)
class Kernel:
    """What the runtime made of a layer."""

    layer: str
    operation: str
    """The operation in the optimized graph, such as "QLinearConv"."""
    integer: bool
    reason: str | None
    """Why it does not run in integers; None where it does."""


@dataclass(frozen=True)
class QuantizedTensor:
    """The codes of one quantizer in the simulation, fed the deployed network's own, and in the deployed network."""

    name: str
    codes: int
    """How many were compared."""
    ties: int
    """How many differ where the exact value lies beside a tie."""
    wrong: int
    """How many differ elsewhere."""
    differing_end_to_end: int
    """How many differ where the simulation ran by itself from the network's inputs on; judged by nothing."""


@dataclass(frozen=True)
class Output:
    """One output of the network, in the simulation and in the deployed network."""

    name: str
    values: int
    relative_error: float
    """The largest difference as a part of the largest number, the simulation fed the deployed network's codes."""
    tolerance: float
    """How much of that float arithmetic explains."""
    relative_error_end_to_end: float
    """The largest difference where the simulation ran by itself; judged by nothing."""
    decisions_end_to_end: Decisions


@dataclass(frozen=True)
class Simulated:
    """The trained simulation against the deployed network."""

    inputs: int = 0
    tensors: tuple[QuantizedTensor, ...] = ()
    outputs: tuple[Output, ...] = ()

    @property
    def codes(self) -> int:
        """How many codes were compared."""
        return sum(tensor.codes for tensor in self.tensors)

    @property
    def ties(self) -> int:
        """How many differ beside a tie."""
        return sum(tensor.ties for tensor in self.tensors)

    @property
    def differing_end_to_end(self) -> int:
        """How many differ where the simulation ran by itself."""
        return sum(tensor.differing_end_to_end for tensor in self.tensors)


@dataclass(frozen=True)
class Verification(Record):
    """What was found; where `failure` is None, everything that must be equal was equal."""

    VERSION: ClassVar[int] = 3

    machine: Machine
    derived: Constant
    """The record of the deployed network against plan and weights."""
    stored: Constant
    """The file against the record."""
    simulated: Simulated
    places: tuple[Place, ...]
    kernels: tuple[Kernel, ...]
    failure: str | None
    """What differs, where something does that must not; None: proven on these inputs."""
    version: int = VERSION
    """The version of the JSON form."""

    @property
    def integer_layers(self) -> tuple[str, ...]:
        """The layers that run in integers."""
        return tuple(kernel.layer for kernel in self.kernels if kernel.integer)

    @property
    def outputs(self) -> tuple[Place, ...]:
        """The places that are outputs of the file."""
        return tuple(place for place in self.places if place.output is not None)

    @property
    def tied(self) -> tuple[QuantizedTensor, ...]:
        """The tensors with codes that differ beside a tie."""
        return tuple(tensor for tensor in self.simulated.tensors if tensor.ties)

    @property
    def wrong(self) -> tuple[QuantizedTensor, ...]:
        """The tensors with codes that differ elsewhere."""
        return tuple(tensor for tensor in self.simulated.tensors if tensor.wrong)

    def __str__(self) -> str:
        machine = self.machine
        lines = [
            f"{machine.runtime} on {machine.cpu} ({', '.join(machine.integer_instructions) or 'nothing special'})",
            f"derived anew       {self.derived}",
            f"in the file        {self.stored}",
            *self._of_simulation(),
            *self._of_runtime(),
        ]
        if self.kernels:
            lines.append(f"integer kernels    {len(self.integer_layers)} of {len(self.kernels)} layers")
        lines += [
            f"  {kernel.layer}: {kernel.operation}, {kernel.reason}" for kernel in self.kernels if not kernel.integer
        ]
        return "\n".join(lines if self.failure is None else [f"FAILED: {self.failure}", *lines])

    def _of_simulation(self) -> list[str]:
        sim = self.simulated
        lines = [
            f"simulation         {counted(sim.codes, 'code')} of {counted(len(sim.tensors), 'tensor')}, fed the "
            f"deployed network's own: {_differ(sim.ties)} beside a tie, "
            f"{sum(tensor.wrong for tensor in self.wrong):,} elsewhere",
        ]
        lines += [f"  {tensor.name}: {tensor.ties:,} of {tensor.codes:,} beside a tie" for tensor in self.tied]
        lines += [f"  {tensor.name}: {tensor.wrong:,} of {tensor.codes:,} WRONG" for tensor in self.wrong]
        lines += [
            f"  {output.name}: off by {output.relative_error:.1e} of the largest, float rounding explains "
            f"{output.tolerance:.1e}"
            for output in sim.outputs
        ]
        lines.append(f"    end to end       {counted(sim.differing_end_to_end, 'code differs', 'codes differ')}")
        lines += [
            f"      {output.name}: off by {output.relative_error_end_to_end:.1e} of the largest"
            f"{output.decisions_end_to_end}"
            for output in sim.outputs
        ]
        return lines

    def _of_runtime(self) -> list[str]:
        exact = [place for place in self.places if place.exact]
        close = [place for place in self.places if not place.exact]
        lines = [
            f"exact places       {len(exact)} with {counted(sum(place.values for place in exact), 'value')}, "
            f"{_differ(sum(place.differing for place in exact))}",
        ]
        if close:
            lines.append(
                f"behind float       {counted(len(close), 'place')}, {sum(place.differing for place in close):,} of "
                f"{sum(place.values for place in close):,} values differ, relative error at most "
                f"{max(place.relative_error for place in close):.1e}, each fed the same values"
            )
        lines.append(
            f"    end to end       {sum(place.differing_end_to_end for place in self.places):,} of "
            f"{sum(place.values for place in self.places):,} values differ"
        )
        lines += [
            f"      {place.output}: off by {place.relative_error_end_to_end:.1e} of the largest"
            f"{place.decisions_end_to_end}"
            for place in self.outputs
        ]
        return lines


def _differ(count: int) -> str:
    return f"{count:,} {'differs' if count == 1 else 'differ'}"
