"""What the record of a verification says, as far as the page tells it.

The record is written where the network is deployed and compared; a run's folder need not have one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FloatKernel:
    """A layer that the runtime does not compute in integers."""

    layer: str
    operation: str
    reason: str


@dataclass(frozen=True)
class Verified:
    """What was compared, and where."""

    runtime: str
    """The runtime and its version."""
    cpu: str
    """The processor's model."""
    instructions: tuple[str, ...]
    """Those of its instructions that integer kernels use."""
    weights: int
    """Codes of weights in the file, all equal."""
    biases: int
    """Biases in the file, all equal."""
    exact_places: int
    """Tensors that have to be equal bit by bit."""
    exact_values: int
    """Their values."""
    exact_differing: int
    """How many of those differ."""
    inputs: int
    """Inputs on which the trained simulation was compared with the integer network."""
    codes: int
    """Codes of layers' inputs that were compared there."""
    differing_codes: int
    flipped: int
    """Decisions that differ."""
    layers: tuple[str, ...]
    """All layers."""
    in_float: tuple[FloatKernel, ...]
    """The layers that do not run in integers."""


def read_verification(path: Path) -> Verified:
    """The record in a file; a ValueError that names the file where it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        machine, simulated, kernels = data["machine"], data["simulated"], data["kernels"]
        exact = [place for place in data["places"] if place["exact"]]
        return Verified(
            runtime=str(machine["runtime"]),
            cpu=str(machine["cpu"]),
            instructions=tuple(map(str, machine["integer_instructions"])),
            weights=int(data["weights"]),
            biases=int(data["biases"]),
            exact_places=len(exact),
            exact_values=sum(int(place["values"]) for place in exact),
            exact_differing=sum(int(place["differing"]) for place in exact),
            inputs=int(simulated["inputs"]),
            codes=int(simulated["codes"]),
            differing_codes=int(simulated["differing_codes"]),
            flipped=int(simulated["flipped"]),
            layers=tuple(str(kernel["layer"]) for kernel in kernels),
            in_float=tuple(
                FloatKernel(str(kernel["layer"]), str(kernel["operation"]), str(kernel["reason"]))
                for kernel in kernels
                if not kernel["integer"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not the record of a verification ({type(error).__name__}: {error}); verify again, or remove it"
        ) from error
