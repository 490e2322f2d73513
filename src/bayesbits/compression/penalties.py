"""The penalties: the cost of open gates, to be added to a task's loss as `task + mu * penalty`.

    paper          sum_k sum_j lambda_jk prod_(i<=j) q_ik,       lambda_jk = b_j MACs_k / max MACs
    variational    sum_k sum_j KL_jk prod_(i<j) q_ik / N,        with the prior P(z_jk = 1) = e^-L, L = N lambda_jk
                   KL_jk = -H[q_jk] + L q_jk - log(1 - e^-L) (1 - q_jk)
    expected_bops  the expected bit operations in percent of float, with the expected widths
                   sum_j (b_j - b_(j-1)) prod_(i<=j) q_ik,  b_0 = 0
    expected_bytes the expected bytes of weights and biases, with the same expected widths
    expected_latency  the expected milliseconds by a latency table, from the probabilities that a tensor has more than
                   8 and more than 24 bits, prod_(i<=j) q_ik with the first width b_j above that; `attach` puts the
                   same number with another gradient in its place, see `compression.latency_prices`

`paper` is the paper's objective, `variational` its bound. q_jk = P(z_jk > 0) is the probability that the gate of width
b_j of tensor k is on; `compression.penalty_base` says which gates and MACs those are. To add a penalty: write a
subclass of `Penalty` here, and name it in `PENALTIES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbits.compression.penalty_base import Penalty, decided_bits
from bayesbits.cost import CostModel
from bayesbits.functional.gates import HALF_LOGIT
from bayesbits.nn import ChannelGate, Quantizer
from bayesbits.records.latency_table import NARROW_BITS, ROUNDED_BITS, LatencyTable
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import Topology

_LIMITS = (NARROW_BITS, ROUNDED_BITS)  # the widths above which a tensor's runtime changes


class PaperPenalty(Penalty):
    """lambda_jk q_jk for every gate whose narrower gates are on: prices and charges of the base class."""


class VariationalPenalty(Penalty):
    """KL_jk / N for every gate whose narrower gates are on; N is `num_examples`.

    With mu = 1 it is KL / N, as in the paper's bound for one example; another mu weights that KL as a whole. The bound
    whose prior has the price mu lambda_jk is that of `num_examples` = N mu instead, as mu * penalty is then KL / N
    again. As N grows, the penalty goes to `paper` with an error of 1 / N.
    """

    def __init__(self, *arguments: Any, num_examples: int | None = None, **options: Any) -> None:
        if num_examples is None or num_examples <= 0:
            raise ValueError(
                "the variational penalty divides by the number of training examples, and num_examples is "
                f"{num_examples!r}: give num_examples=len(dataset), or choose the kind 'paper', which needs none"
            )
        super().__init__(*arguments, **options)
        self._examples = num_examples  # N

    def charge(self, logits: Tensor, on: Tensor) -> Tensor:
        exponent = (self._examples * self.price).clamp(min=torch.finfo(on.dtype).tiny)  # L, of the prior e^-L
        small, large = torch.log(-torch.expm1(-exponent)), torch.log1p(-torch.exp(-exponent))
        log_prior_off = torch.where(exponent < math.log(2), small, large)
        log_on, log_off = F.logsigmoid(logits - HALF_LOGIT), F.logsigmoid(HALF_LOGIT - logits)
        return self.price * on + (on * log_on + log_off.exp() * (log_off - log_prior_off)) / self._examples


class ExpectedBopsPenalty(Penalty):
    """The expected relative bit operations, in percent; equal to the counted ones when all gates are exactly 0 or 1.

    Channels are a factor of their own, not the first gate of a weight. Operands of residual additions are no part of
    the bit operations, and their gates are left alone.
    """

    channels_are_first_gates: ClassVar[bool] = False

    def __init__(
        self, topology: Topology, *arguments: Any, cost_model: CostModel | None = None, **options: Any
    ) -> None:
        super().__init__(topology, *arguments, **options)
        self._bops_tensors = [*topology.weight_tensors, *(activation.name for activation in topology.activations)]
        self.cost_model = cost_model or CostModel(topology)
        self.use_dtype_of_gates()

    @staticmethod
    def prices(widths: tuple[int, ...], mac_share: float) -> list[float]:
        """b_j - b_(j-1), so that the charges of a tensor add up to its expected width."""
        return [float(high - low) for low, high in pairwise((0, *widths))]

    def total(self, charges: Tensor, on: Tensor) -> Tensor:
        widths = dict.fromkeys(self._bops_tensors, self.integers[FLOAT_BITS])
        for (name, (quantizer, _)), width in zip(self._tensors.items(), charges.unbind(), strict=True):
            bits = decided_bits(quantizer)
            widths[name] = width if bits is None else self.integers[bits]
        return self.cost(widths, self.channels_on(on))

    def channels_on(self, on: Tensor) -> dict[str, Tensor]:
        """The probability that each channel is on, by the layer's name."""
        sizes = [gate.channels for gate in self._channel_gates.values()]
        end = on.numel() - len(self._tensors) - 1
        channels = torch.split(on[end - sum(sizes) : end], sizes)
        return dict(zip(self._channel_gates, channels, strict=True))

    def cost(self, widths: Mapping[str, Tensor], on: Mapping[str, Tensor]) -> Tensor:
        """The cost, from the expected width of every tensor and the probability that each channel is on."""
        return self.cost_model.relative_bops(widths, on, "exact")


class ExpectedBytesPenalty(ExpectedBopsPenalty):
    """The expected bytes of the packed weights and biases; activations have no part in it."""

    def cost(self, widths: Mapping[str, Tensor], on: Mapping[str, Tensor]) -> Tensor:
        return self.cost_model.weight_bytes(widths, on)


class ExpectedLatencyPenalty(ExpectedBopsPenalty):
    """The expected milliseconds that a latency table predicts; equal to the predicted ones when all gates are 0 or 1.

    A tensor is charged once with the probability that it has more than 8 bits, and once with that of more than 24.
    """

    _OVER, _WIDE = 1.0, 2.0

    def __init__(self, topology: Topology, *arguments: Any, table: LatencyTable | None = None, **options: Any) -> None:
        if table is None:
            raise ValueError(
                "the penalty 'expected_latency' needs a latency table: write one by `bayesbits measure`, and give it "
                "as Spec.latency_table, or in a Budget(latency_ms=..., table=...)"
            )
        super().__init__(topology, *arguments, **options)
        self.table = table
        self.cost_model.latency_model(table)  # made here, and not in the first step

    @staticmethod
    def prices(widths: tuple[int, ...], mac_share: float) -> list[float]:
        """For every width 1 if it is the first above 8 bits, plus 2 if it is the first above 24."""
        over, wide = ([narrow <= limit < width for narrow, width in pairwise((0, *widths))] for limit in _LIMITS)
        penalty = ExpectedLatencyPenalty
        return [penalty._OVER * a + penalty._WIDE * b for a, b in zip(over, wide, strict=True)]

    def forward(self, decided: bool = False) -> Tensor:
        over, wide, channels = self.above(decided)
        return self.cost_model.latency_ms(self.table, over, wide, channels)

    def above(self, decided: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """The probabilities that a tensor has more than 8 bits, that it has more than 24, and that a channel is on."""
        _, on = self.gates_on(decided)
        maps = []
        for starts, limit in zip((self.price % 2, (self.price >= self._WIDE).to(on)), _LIMITS, strict=True):
            above = dict.fromkeys(self._bops_tensors, self.integers[1])
            charges = self.tensor_charges(starts * on, on)
            for (name, (quantizer, _)), probability in zip(self._tensors.items(), charges.unbind(), strict=True):
                bits = decided_bits(quantizer)
                above[name] = probability if bits is None else self.integers[int(bits > limit)]
            maps.append(above)
        return maps[0], maps[1], self.channels_on(on)


PENALTIES: dict[str, type[Penalty]] = {
    "paper": PaperPenalty,
    "expected_bops": ExpectedBopsPenalty,
    "expected_bytes": ExpectedBytesPenalty,
    "expected_latency": ExpectedLatencyPenalty,
    "variational": VariationalPenalty,
}


def make_penalty(
    topology: Topology,
    quantizers: Mapping[str, Quantizer],
    channel_gates: Mapping[str, ChannelGate],
    kind: str = "paper",
    *,
    num_examples: int | None = None,
    cost_model: CostModel | None = None,
    table: LatencyTable | None = None,
) -> Penalty:
    """The penalty of this kind for the gates of a network."""
    if kind not in PENALTIES:
        raise ValueError(f"the kind of penalty is {kind!r}; it is one of {', '.join(PENALTIES)}")
    return PENALTIES[kind](
        topology, quantizers, channel_gates, num_examples=num_examples, cost_model=cost_model, table=table
    )
