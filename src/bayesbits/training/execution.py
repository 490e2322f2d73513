"""How a training is executed: which implementation computes quantizers, and whether the step is compiled and recorded.

A step that silently falls back to something slower still trains, at several times the cost. So the implementations that
really ran are noted, and reported on the console, in the metrics, in the result and in the report.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

_NAMES = {
    "triton_launch": "the Triton kernels",
    "compiled": "the definition, compiled for the CPU where tensors are large",
    "eager": "the definition in torch's operations",
    "reference": "the definition in torch's operations",
}


@dataclass(frozen=True)
class Execution:
    """How a training is executed."""

    quantizers: str
    """The implementation of the quantizers; empty where there are none."""
    compiled: bool
    """Whether the network runs compiled."""
    not_compiled: str
    """Why not; empty where it does."""
    recorded: bool
    """Whether the step is recorded as a CUDA graph and replayed."""
    not_recorded: str
    """Why not; empty where it is."""

    def __str__(self) -> str:
        compiled = "compiled" if self.compiled else f"not compiled ({self.not_compiled})"
        recorded = "recorded as a CUDA graph" if self.recorded else f"not recorded ({self.not_recorded})"
        return f"{compiled}, {recorded}, {f'quantizers by {self.quantizers}' if self.quantizers else 'no quantizers'}"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def executions_in(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Execution]:
    """How each phase was executed at its end, from the lines of `metrics.jsonl`."""
    names = [field.name for field in fields(Execution)]
    told = (line for line in metrics if line["event"] == "execution")
    return {line["phase"]: Execution(**{name: line[name] for name in names}) for line in told}


def quantizers_by(ran: Collection[str], *, attached: bool, compiled: bool) -> str:
    """The implementation of the quantizers in words, from the names of those that ran."""
    if not attached:
        return ""
    if not ran:
        return "the definition in plain operations, which the compiler fuses"
    # One that is compiled for the CPU leaves small tensors to the definition.
    names = [_NAMES[name] for name in _NAMES if name in ran and not (name == "eager" and "compiled" in ran)]
    return " and ".join(names) + (", as one operation each of the compiled network" if compiled else "")
