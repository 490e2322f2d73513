"""What a method that chooses the rounding of weights reports: the errors of every layer or block before and after."""

from dataclasses import dataclass

from bayesbits.baselines.layerwise import SkippedLayer
from bayesbits.records.plan import Plan


@dataclass(frozen=True)
class RoundedUnit:
    """A layer or a block whose rounding was chosen."""

    name: str
    """The layer, or the module of the block."""
    weights: int
    """The number of its weights."""
    moved: int
    """The number of weights whose code is not the nearest one."""
    nearest_error: float
    """The squared error of the output with every weight at its nearest code: summed over channels, mean over data."""
    error: float
    """The squared error with the chosen codes, and with the ranges where those were learned."""
    layers: tuple[str, ...] = ()
    """The layers whose rounding was chosen."""

    def __str__(self) -> str:
        error = f"error {self.nearest_error:.4g} -> {self.error:.4g}"
        layers = f" of {len(self.layers)} layers" if len(self.layers) > 1 else ""
        return f"{self.name}: {self.moved} of {self.weights} codes{layers} moved, {error}"


@dataclass(frozen=True)
class RoundingReport:
    """The changes that `adaround`, `reconstruct` or `gptq` made to a network; `print` shows one line for each unit.

    Args:
        plan: The plan of the network, which did not change.
        units: The layers whose rounding was chosen, and the blocks where `reconstruct` learned them as a whole, in
            running order, with their errors before and after.
        skipped: The other layers, each with the reason.

    Example::

        >>> import bayesbits as bb
        >>> from bayesbits.baselines.rounding_report import RoundedUnit
        >>> layer = RoundedUnit("0", weights=12, moved=3, nearest_error=0.5, error=0.2)
        >>> print(bb.baselines.RoundingReport(bb.Plan({"0.weight": 4}), (layer,), ()))
        0: 3 of 12 codes moved, error 0.5 -> 0.2
    """

    plan: Plan
    """The plan of the network, which did not change."""
    units: tuple[RoundedUnit, ...]
    """The layers and blocks whose rounding was chosen, in running order."""
    skipped: tuple[SkippedLayer, ...]
    """The other layers, each with the reason."""

    def __str__(self) -> str:
        skipped = [f"{layer.name} is left as it was: {layer.reason}" for layer in self.skipped]
        return "\n".join([*map(str, self.units), *skipped])
