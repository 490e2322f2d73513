"""The result of `verify`: what was compared and how much of it differed, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesbits.deploy.onnx.runtime import Kernel, Machine
from bayesbits.records.serialization import Record

INTEGERS = "integers"
"""The kind of the codes and sums of a layer that quantizes its input at run time."""


class VerificationError(AssertionError):
    """Simulation, deployed network and ONNX file do not agree; the message names the first tensor that differs.

    Attributes:
        found: The :class:`Verification` up to the failure; its ``failure`` is the message. None where the error was
            not raised by :func:`bayesbits.verify`.

    Example::

        >>> import bayesbits as bb
        >>> try:
        ...     raise bb.VerificationError("head: bias differs in 1 of 4 values")
        ... except AssertionError as error:
        ...     print(error, error.found)
        head: bias differs in 1 of 4 values None
    """

    found: Verification | None = None


@dataclass(frozen=True)
class ConstantCounts:
    """How many constants were compared, all of them equal; zeros where the comparison failed or did not run."""

    weights: int = 0
    """The number of weight codes, or of weights that stay in float."""
    biases: int = 0
    """The number of bias values."""
    grids: int = 0
    """The number of tensors whose step, bounds, sign and zero point were compared."""

    def __str__(self) -> str:
        if not self.weights:
            return "not all equal, or not compared"
        weights, biases = _count(self.weights, "weight"), _count(self.biases, "bias", "biases")
        return f"{weights}, {biases} and {_count(self.grids, 'grid')}, all equal"


@dataclass(frozen=True)
class Predictions:
    """How many predictions (the argmax over the classes of an output) were compared, and how many differ."""

    classes: int = 0
    """The number of classes; 0 where the output has no axis of classes, and nothing was compared."""
    compared: int = 0
    """The number of predictions that were compared."""
    flipped: int = 0
    """The number of predictions that differ."""

    def __str__(self) -> str:
        if not self.classes:
            return ""
        return f"; the largest of {self.classes} differs in {self.flipped:,} of {self.compared:,}"


@dataclass(frozen=True)
class Steps:
    """How far a tensor of a portable file is from the deployed network's, in steps.

    A step is that of the tensor's grid; without a grid it is the 255th part of the largest value.
    """

    on_grid: bool
    """Whether the tensor lies on a grid."""
    largest: float
    """The largest difference when the runtime reads the deployed network's own values."""
    mean: float
    """The mean difference then."""
    largest_end_to_end: float
    """The largest difference of an output when the runtime runs from the network's inputs on."""
    mean_end_to_end: float
    """The mean difference then."""


@dataclass(frozen=True)
class RuntimeTensor:
    """One tensor of the ONNX file, as the runtime and the deployed network compute it."""

    name: str
    """The name of the layer, of the quantized tensor, or of the output."""
    kind: str
    """"layer", "product", "table", "quantizer", "output", "input" (numbers that a layer quantizes at run time), or
    "integers" (the codes and sums of such a layer before the runtime fuses it, which are not compared end to end)."""
    exact: bool
    """Whether it has to be equal bit by bit; otherwise float operations compute it."""
    values: int
    """The number of values that were compared."""
    differing: int
    """How many differ when the runtime reads the deployed network's own values."""
    relative_error: float
    """The largest difference then, relative to the largest value."""
    differing_end_to_end: int
    """How many differ when the runtime runs from the network's inputs on; must be zero only where every tensor in front
    is exact."""
    relative_error_end_to_end: float
    """The largest difference then, relative to the largest value."""
    predictions_end_to_end: Predictions
    """The predictions of an output then."""
    output: str | None = None
    """The name of the file's output that this tensor is; None where it is not an output."""
    steps: Steps | None = None
    """The differences in steps, of a file in the form "qdq", whose inner tensors are not compared end to end."""


@dataclass(frozen=True)
class QuantizedTensor:
    """The codes of one quantizer: the simulation's, which reads the deployed network's codes, and the deployed ones."""

    name: str
    """The quantizer's name."""
    codes: int
    """The number of codes that were compared."""
    ties: int
    """How many differ where the exact value lies next to a rounding tie."""
    wrong: int
    """How many differ elsewhere."""
    differing_end_to_end: int
    """How many differ when the simulation runs from the network's inputs on; only counted, never an error."""


@dataclass(frozen=True)
class SimulatedOutput:
    """One output of the network, as the simulation and the deployed network compute it."""

    name: str
    """The output's name."""
    values: int
    """The number of values that were compared."""
    relative_error: float
    """The largest difference relative to the largest value, when the simulation reads the deployed network's codes."""
    tolerance: float
    """The largest difference that rounding in float32 explains, relative to the largest value."""
    relative_error_end_to_end: float
    """The largest difference when the simulation runs from the network's inputs on; only counted, never an error."""
    predictions_end_to_end: Predictions
    """The predictions then."""


@dataclass(frozen=True)
class SimulationCounts:
    """The comparison of the trained simulation with the deployed network."""

    inputs: int = 0
    """The number of examples."""
    tensors: tuple[QuantizedTensor, ...] = ()
    """Every quantized tensor."""
    outputs: tuple[SimulatedOutput, ...] = ()
    """Every output of the network."""

    @property
    def codes(self) -> int:
        """The number of codes that were compared."""
        return sum(tensor.codes for tensor in self.tensors)

    @property
    def ties(self) -> int:
        """How many codes differ next to a rounding tie."""
        return sum(tensor.ties for tensor in self.tensors)

    @property
    def wrong(self) -> int:
        """How many codes differ elsewhere."""
        return sum(tensor.wrong for tensor in self.tensors)

    @property
    def differing_end_to_end(self) -> int:
        """How many codes differ when the simulation runs from the network's inputs on."""
        return sum(tensor.differing_end_to_end for tensor in self.tensors)


@dataclass(frozen=True)
class Verification(Record):
    """The result of :func:`bayesbits.verify`: everything that was compared, and how much of it differed.

    ``print`` shows it as a table, ``save(path)`` writes it as JSON, and ``Verification.load(path)`` reads it.

    Args:
        machine: The processor and the runtime.
        derived: Constants of the deployed network, compared with those derived from plan and weights.
        stored: Constants of the ONNX file, compared with those of the deployed network.
        simulated: The trained simulation, compared with the deployed network.
        runtime_tensors: The tensors of the ONNX file, compared with the deployed network.
        kernels: The kernel that every layer became in the runtime.
        failure: The first disagreement; None where deployed network and file are proven equal on these inputs.
        version: The version of the JSON form.

    Example::

        >>> import bayesbits as bb
        >>> from bayesbits.deploy.onnx.runtime import Kernel, Machine
        >>> from bayesbits.deploy.verification.result import ConstantCounts, QuantizedTensor, SimulationCounts
        >>> constants = ConstantCounts(weights=6, biases=1, grids=1)
        >>> found = bb.Verification(
        ...     machine=Machine("a processor", ("avx2",), "onnxruntime 1.31"),
        ...     derived=constants,
        ...     stored=constants,
        ...     simulated=SimulationCounts(8, (QuantizedTensor("head.input", 48, 1, 0, 2),)),
        ...     runtime_tensors=(),
        ...     kernels=(Kernel("head", "QGemm", True, None),),
        ...     failure=None,
        ... )
        >>> found.integer_layers, found.simulated.ties
        (('head',), 1)
        >>> str(found.stored)
        '6 weights, 1 bias and 1 grid, all equal'
        >>> bb.Verification.from_json(found.to_json()) == found
        True
    """

    VERSION: ClassVar[int] = 4

    machine: Machine
    """The processor and the runtime."""
    derived: ConstantCounts
    """Constants of the deployed network, compared with those derived from plan and weights."""
    stored: ConstantCounts
    """Constants of the ONNX file, compared with those of the deployed network."""
    simulated: SimulationCounts
    """The trained simulation, compared with the deployed network."""
    runtime_tensors: tuple[RuntimeTensor, ...]
    """The tensors of the ONNX file, compared with the deployed network."""
    kernels: tuple[Kernel, ...]
    """The kernel that every layer became in the runtime."""
    failure: str | None
    """The first disagreement; None where deployed network and file are proven equal on these inputs."""
    version: int = VERSION
    """The version of the JSON form."""

    @property
    def integer_layers(self) -> tuple[str, ...]:
        """The layers that run in integers."""
        return tuple(kernel.layer for kernel in self.kernels if kernel.integer)

    @property
    def exact_layers(self) -> tuple[str, ...]:
        """The layers that add up nothing but integers: those, and the ones of whole numbers in float."""
        return tuple(kernel.layer for kernel in self.kernels if kernel.exact)

    @property
    def outputs(self) -> tuple[RuntimeTensor, ...]:
        """The tensors that are outputs of the file."""
        return tuple(tensor for tensor in self.runtime_tensors if tensor.output is not None)

    @property
    def tied(self) -> tuple[QuantizedTensor, ...]:
        """The tensors with codes that differ next to a rounding tie."""
        return tuple(tensor for tensor in self.simulated.tensors if tensor.ties)

    @property
    def wrong(self) -> tuple[QuantizedTensor, ...]:
        """The tensors with codes that differ elsewhere."""
        return tuple(tensor for tensor in self.simulated.tensors if tensor.wrong)

    def __str__(self) -> str:
        instructions = ", ".join(self.machine.integer_instructions) or "no integer instructions"
        lines = [
            f"{self.machine.runtime} on {self.machine.cpu} ({instructions})",
            *(["  without VNNI: products of unsigned and signed bytes may saturate"] * self.machine.may_saturate),
            f"derived again      {self.derived}",
            f"in the file        {self.stored}",
            *self._simulation_lines(),
            *self._runtime_lines(),
        ]
        if self.kernels:
            lines.append(f"integer kernels    {len(self.integer_layers)} of {len(self.kernels)} layers")
        lines += [
            f"  {kernel.layer}: {kernel.operation}, {kernel.reason}" for kernel in self.kernels if not kernel.integer
        ]
        return "\n".join(lines if self.failure is None else [f"FAILED: {self.failure}", *lines])

    def _simulation_lines(self) -> list[str]:
        counts = self.simulated
        lines = [
            f"simulation         {_count(counts.codes, 'code')} of {_count(len(counts.tensors), 'tensor')}, fed the "
            f"deployed network's own: {_differ(counts.ties)} beside a tie, {counts.wrong:,} elsewhere",
        ]
        lines += [f"  {tensor.name}: {tensor.ties:,} of {tensor.codes:,} beside a tie" for tensor in self.tied]
        lines += [f"  {tensor.name}: {tensor.wrong:,} of {tensor.codes:,} WRONG" for tensor in self.wrong]
        lines += [
            f"  {output.name}: off by {output.relative_error:.1e} of the largest, float rounding explains "
            f"{output.tolerance:.1e}"
            for output in counts.outputs
        ]
        lines.append(f"    end to end       {_count(counts.differing_end_to_end, 'code differs', 'codes differ')}")
        lines += [
            f"      {output.name}: off by {output.relative_error_end_to_end:.1e} of the largest"
            f"{output.predictions_end_to_end}"
            for output in counts.outputs
        ]
        return lines

    def _portable_lines(self) -> list[str]:
        """The lines of a file whose differences were counted in steps."""
        rows = [(tensor, tensor.steps) for tensor in self.runtime_tensors if tensor.steps is not None]
        lines = []
        for title, on_grid in (("rounded tensors", True), ("other tensors", False)):
            kept = [(tensor, steps) for tensor, steps in rows if steps.on_grid == on_grid]
            if kept:
                lines.append(
                    f"{title:<18} {len(kept)}, {sum(tensor.differing for tensor, _ in kept):,} of "
                    f"{sum(tensor.values for tensor, _ in kept):,} values differ, by at most "
                    f"{max(steps.largest for _, steps in kept):.2g} steps, each fed the same values"
                )
        lines.append("    end to end")
        lines += [
            f"      {tensor.output}: off by {steps.largest_end_to_end:.2g} steps at most, {steps.mean_end_to_end:.2g} "
            f"in the mean{tensor.predictions_end_to_end}"
            for tensor, steps in rows
            if tensor.output is not None
        ]
        return lines

    def _runtime_lines(self) -> list[str]:
        tensors = self.runtime_tensors
        if any(tensor.steps is not None for tensor in tensors):
            return self._portable_lines()
        exact = [tensor for tensor in tensors if tensor.exact]
        close = [tensor for tensor in tensors if not tensor.exact]
        lines = [
            f"exact tensors      {len(exact)} with {_count(sum(tensor.values for tensor in exact), 'value')}, "
            f"{_differ(sum(tensor.differing for tensor in exact))}",
        ]
        if close:
            lines.append(
                f"float tensors      {len(close)}, {sum(tensor.differing for tensor in close):,} of "
                f"{sum(tensor.values for tensor in close):,} values differ, relative error at most "
                f"{max(tensor.relative_error for tensor in close):.1e}, each fed the same values"
            )
        whole = [tensor for tensor in tensors if tensor.kind != INTEGERS]
        lines.append(
            f"    end to end       {sum(tensor.differing_end_to_end for tensor in whole):,} of "
            f"{sum(tensor.values for tensor in whole):,} values differ"
        )
        lines += [
            f"      {tensor.output}: off by {tensor.relative_error_end_to_end:.1e} of the largest"
            f"{tensor.predictions_end_to_end}"
            for tensor in self.outputs
        ]
        return lines


def _count(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def _differ(count: int) -> str:
    return f"{count:,} {'differs' if count == 1 else 'differ'}"
