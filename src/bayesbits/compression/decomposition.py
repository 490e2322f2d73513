"""The paper's decomposition of a tensor: x_2, its rounding to 2 bits, and the residuals that each doubling adds.

    x = x_2 + eps_4 + eps_8 + ... + what no width of the tensor represents

The gates decide how many of the terms are kept. Equation 6 of the paper; with the closed form of `functional.reference`
eps_b is the difference of two direct roundings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.compression.observers import network_restored, observing
from bayesbits.compression.range_estimation import round_to_bits
from bayesbits.compression.sampling import sampled_rows, unstretched
from bayesbits.functional import step_size
from bayesbits.nn import Quantizer
from bayesbits.utils.batches import call_model


@dataclass(frozen=True)
class Term:
    """One term of the decomposition."""

    bits: int
    """x_2 for the lowest width, otherwise the residual of this width."""
    step: float
    """The distance of two codes at this width; the largest where each channel has a range of its own."""
    size: float
    """The root mean square of the term."""
    error: float
    """What is missing once this term is added: the energy of the remaining error in percent of that of the tensor."""
    kept: bool
    """Whether the final width of the tensor keeps it."""
    examples: tuple[float, ...]
    """The term for each of a few values."""


@dataclass(frozen=True)
class Decomposition:
    """A tensor in terms of its widths."""

    name: str
    bits: int
    """The final width."""
    values: int
    """The number of values that the terms were computed from."""
    terms: tuple[Term, ...]
    examples: tuple[float, ...]
    """A few values of the tensor, from the smallest to the largest."""


def decompose(compressor: Compressor, tensor: str, inputs: Any, examples: int = 5) -> Decomposition:
    """The decomposition of one quantized tensor of a network with final widths; the network stays as it is.

    Args:
        compressor: A network with a plan that is fixed.
        tensor: The name of the tensor, such as "conv1.weight" or "conv1.input".
        inputs: What the network is called with.
        examples: The number of values that are shown term by term.

    Raises:
        ValueError: If the network has no such quantizer, or it did not run.
    """
    quantizers = dict(compressor.attachment.quantizers)
    if tensor not in quantizers:
        raise ValueError(f"no tensor that is quantized is called {tensor!r}; there are: {', '.join(quantizers)}")
    quantizer = quantizers[tensor]
    seen: list[tuple[Tensor, Tensor | None, Tensor | None]] = []

    def look(_: nn.Module, called: tuple[Any, ...]) -> None:
        if not seen:
            x, stretch = called[0].detach(), called[1].detach() if len(called) > 1 and called[1] is not None else None
            own = None if quantizer.is_plain else quantizer.forward(x, stretch)
            if own is not None:
                x, own, stretch = unstretched(x, stretch), unstretched(own, stretch), None
            seen.append((x, stretch, own))

    with network_restored(compressor.model), torch.no_grad(), observing({tensor: quantizer}, {tensor: look}):
        compressor.model.eval()
        call_model(compressor.model, inputs)
    if not seen or seen[0][0].numel() == 0:
        raise ValueError(f"no values reached {tensor!r}")
    return _terms(tensor, quantizer, *seen[0], examples)


def _terms(
    name: str, quantizer: Quantizer, x: Tensor, stretch: Tensor | None, own: Tensor | None, examples: int
) -> Decomposition:
    """The terms; `own` is what a quantizer makes of x that is no plain rounding at the final width."""
    beta, alpha = quantizer.range_of(x)
    beta = (beta if stretch is None else beta * stretch).reshape(-1)
    rows = sampled_rows(x, beta.numel())
    final_rows = None if own is None else sampled_rows(own, beta.numel())
    places = _spread(rows, examples)
    energy = rows.square().sum().item() or 1.0
    final = quantizer.effective_bits()
    before, terms = torch.zeros_like(rows), []
    for bits in sorted({*quantizer.bits, final} - {0}):
        plain = round_to_bits(rows, beta, bits, quantizer.signed, alpha)
        after = plain if final_rows is None or bits != final else final_rows
        term = after - before
        terms.append(
            Term(
                bits=bits,
                step=step_size(beta, bits, quantizer.signed, alpha).max().item(),
                size=term.square().mean().sqrt().item(),
                error=100 * (rows - after).square().sum().item() / energy,
                kept=bits <= final,
                examples=tuple(term.flatten()[places].tolist()),
            )
        )
        before = after
    return Decomposition(name, final, rows.numel(), tuple(terms), tuple(rows.flatten()[places].tolist()))


def _spread(rows: Tensor, number: int) -> Sequence[int]:
    """Where values lie that are nearest to equal distances from the smallest to the largest."""
    values = rows.flatten()
    wanted = torch.linspace(values.min().item(), values.max().item(), number).tolist()
    return list(dict.fromkeys(int((values - value).abs().argmin()) for value in wanted))
