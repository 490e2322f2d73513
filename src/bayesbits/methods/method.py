"""What a method is: a name, its paper, and the quantizers that it puts on weights and activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayesbits.methods.quantizer import MethodQuantizer


@dataclass(frozen=True)
class Method:
    """A quantization method, as `Spec(method=...)` names it."""

    name: str
    """The name in a `Spec`."""
    title: str
    """The name in tables."""
    paper: str
    """Authors, title and year."""
    weights: type[MethodQuantizer] | None = None
    """The quantizer of weights; None: the gated one of Bayesian Bits."""
    activations: type[MethodQuantizer] | None = None
    """The quantizer of activations; None: the gated one of Bayesian Bits, of a fixed width where the method has one."""
    widths: tuple[int, int] | None = None
    """The bits of weights and of activations where nothing else is said; None: the method learns them."""
    edge_bits: int | None = None
    """The width that the original gives the first and the last layer, where it differs from the others'."""
    gates: str | None = None
    """The kind of the gates, where the method has one of its own."""
    folds: bool = False
    """Whether weights are rounded with the batch norm behind them folded in. Otherwise they are rounded as they are,
    and the factors of the batch norm become part of the deployed steps, one for each output channel."""
    ranges: Mapping[str, Any] = field(default_factory=dict)
    """Options of the optimizer of the ranges with which the method works; a search has them where nothing else is
    said."""

    @property
    def gated(self) -> bool:
        """Whether gates decide: then channels are pruned, budgets are possible, and gates are penalized."""
        return self.weights is None

    @property
    def learns_widths(self) -> bool:
        """Whether the method learns widths."""
        return self.widths is None
