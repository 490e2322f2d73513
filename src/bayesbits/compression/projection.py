"""The projection of a network's gates onto a budget: the plan that fits, as near as possible to what the gates say.

A gate stays open in training where what it gains is worth its price, mu times the cost that it adds, and its logit says
by how much: the loss for the cost saved grows with the logit, whatever the cost of the single gate. So gates are sorted
by their logits, and the plan is that of the first n gates, with the largest n whose counted cost is within the budget.
In what is left of it, single bits and channels are taken back in the same order where they fit.

The rules of the spec hold throughout: widths are chosen from the search space, of every group of channels at least one
stays, and a multiple of `Spec.channel_multiple`; channels that can only be removed together go together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.budget import Budget, counted
from bayesbits.compression.planning import (
    DecidedGroup,
    channel_logits,
    channels_of,
    complete_groups,
    decided_groups,
    make_plan,
)
from bayesbits.compression.smallest_plan import reachable_plan
from bayesbits.functional.gates import HALF_LOGIT, THRESHOLD
from bayesbits.nn import Quantizer
from bayesbits.records.plan import Plan
from bayesbits.records.topology import RECURRENT

_DECISION_LOGIT = HALF_LOGIT - math.log(THRESHOLD / (1 - THRESHOLD))  # a gate is open above it
_MARGIN = 1.0  # how far from there a gate's logit is put where the projection decides otherwise
_CERTAIN = 12.0  # noise changes a gate with this logit, or its negative, once in 30,000 draws


def project(attachment: Attachment, budget: Budget, *, most_bits: int | None = None) -> Plan:
    """The plan within the budget that is nearest to the gates' decision; the gates are left as they are.

    With `most_bits` no width that learns is above it, where its tensor has another; and tensors that the budget does
    not limit have the widest of the others, whatever their gates say. A `BudgetError` where there is no plan.
    """
    reachable = reachable_plan(attachment, budget)
    order = _GateOrder(attachment, budget, most_bits)
    fits = _largest(len(order), lambda count: order.allows(order.plan(order.decision(count))))
    if fits is not None:
        return order.fill(order.decision(fits))
    if most_bits is not None:
        return project(attachment, budget)  # wider tensors can be faster
    return order.fill(order.decision_of(reachable))


@torch.no_grad()
def adopt(attachment: Attachment, plan: Plan, *, certain: bool = False) -> None:
    """Move the logits of learning gates so that their decision is a plan.

    Gates that say so already stay. With `certain` all logits are so large or small that noise changes no gate.
    """
    for name, quantizer in attachment.quantizers.items():
        bits = plan.bits.get(name, 0)
        if quantizer.mode == "learning" and bits > 0:
            level = quantizer.bits.index(bits) - 1 + (not quantizer.gates.open_first)
            logits = quantizer.gates.logits
            _move(logits, torch.arange(logits.numel(), device=logits.device) <= level, certain)
    for name, gate in attachment.channel_gates.items():
        if not gate.fixed:
            kept = torch.ones_like(gate.may_close)
            if name in plan.kept:
                kept[:] = False
                kept[list(plan.kept[name])] = True
            _move(gate.gates.logits, gate.by_gate(kept), certain)


def _move(logits: Tensor, is_open: Tensor, certain: bool) -> None:
    if certain:
        logits.copy_(torch.where(is_open, _CERTAIN, -_CERTAIN))
        return
    opened = logits.clamp(min=_DECISION_LOGIT + _MARGIN)
    closed = logits.clamp(max=_DECISION_LOGIT - _MARGIN)
    decided = logits > _DECISION_LOGIT
    logits.copy_(torch.where(decided == is_open, logits, torch.where(is_open, opened, closed)))


@dataclass(order=True, frozen=True)
class _Gate:
    """A gate in the order, those that are kept longest first. Of equal logits the wide widths are given up first."""

    minus_logit: float
    bits: int
    """The width that it opens; 0 for a channel."""
    owner: str
    """The tensor or the layer."""
    index: int
    """Which of the owner's gates it is."""


@dataclass(frozen=True)
class _Decision:
    """Widths and channels while they are being chosen."""

    bits: Mapping[str, int]
    kept: Mapping[str, list[bool]]
    """Whether each gate of a layer keeps its channels."""


@dataclass(frozen=True)
class _Width:
    """A tensor whose width can be increased."""

    name: str
    widths: tuple[int, ...]
    logits: list[float]
    """Those of the gates of all widths but the narrowest."""

    def gain(self, decision: _Decision) -> float | None:
        """The logit of the gate of the next width; None at the widest."""
        level = self.widths.index(decision.bits[self.name])
        return self.logits[level] if level < len(self.logits) else None

    def larger(self, decision: _Decision) -> Iterator[_Decision]:
        """The decisions with the next width, and with those above it."""
        for wider in self.widths[self.widths.index(decision.bits[self.name]) + 1 :]:
            yield _Decision({**decision.bits, self.name: wider}, decision.kept)


@dataclass(frozen=True)
class _Channels:
    """A group of channels of which some can be taken back."""

    entry: DecidedGroup
    logits: Mapping[str, list[float]]
    multiple: int

    def gain(self, decision: _Decision) -> float | None:
        """The mean logit of the channels to be taken back next; None where all are there."""
        block = self._block(decision)
        return sum(map(self._logit, block)) / len(block) if block else None

    def larger(self, decision: _Decision) -> Iterator[_Decision]:
        """The decision with one channel more, or with those up to the next multiple."""
        kept = dict(decision.kept)
        for channel in self._block(decision):
            name, index = self.entry.strongest[channel]
            kept[name] = [*kept[name][:index], True, *kept[name][index + 1 :]]
        yield _Decision(decision.bits, kept)

    def _block(self, decision: _Decision) -> list[int]:
        group, makers = self.entry.group, self.entry.makers
        absent = [c for c in group.channels if not any(decision.kept[name][index] for name, index in makers[c])]
        present = group.size - len(absent)
        absent.sort(key=lambda channel: -self._logit(channel))
        return absent[: self.entry.allowed(present + 1, self.multiple) - present]

    def _logit(self, channel: int) -> float:
        name, index = self.entry.strongest[channel]
        return self.logits[name][index]


class _GateOrder:
    """The learning gates that a budget depends on, in the order in which the projection keeps them."""

    def __init__(self, attachment: Attachment, budget: Budget, most_bits: int | None = None) -> None:
        self.attachment, self.budget = attachment, budget
        quantizers, gates = attachment.quantizers, attachment.channel_gates
        self._logits, self._multiple = channel_logits(attachment), attachment.spec.channel_multiple
        self._groups = decided_groups(attachment, self._logits)
        self._bits = {name: q.effective_bits() for name, q in quantizers.items() if q.mode != "off"}
        learning = {name: _width_of(name, q, most_bits) for name, q in quantizers.items() if q.mode == "learning"}
        if most_bits is not None:
            self._bits |= {name: entry.widths[-1] for name, entry in learning.items()}
        self._widths = [learning[name] for name in _limited_tensors(attachment, budget) if name in learning]
        self._kept = {
            name: gate.by_gate(gate.kept() if gate.fixed else ~gate.may_close).tolist() for name, gate in gates.items()
        }
        self._learning = [name for name, gate in gates.items() if not gate.fixed]
        self._gates = sorted(self._all_gates())

    def __len__(self) -> int:
        return len(self._gates)

    def _all_gates(self) -> Iterator[_Gate]:
        for entry in self._widths:
            for index, (bits, logit) in enumerate(zip(entry.widths[1:], entry.logits, strict=True)):
                yield _Gate(-logit, bits, entry.name, index)
        for name in self._learning:
            for index, logit in enumerate(self._logits[name]):
                if not self._kept[name][index]:
                    yield _Gate(-logit, 0, name, index)

    def decision(self, count: int) -> _Decision:
        """The decision in which the first gates are open, `count` of them; a width counts if all narrower ones do."""
        opened: dict[str, set[int]] = {}
        for gate in self._gates[:count]:
            opened.setdefault(gate.owner, set()).add(gate.index)
        bits = dict(self._bits)
        for entry in self._widths:
            own = opened.get(entry.name, set())
            bits[entry.name] = entry.widths[next(level for level in range(len(entry.widths)) if level not in own)]
        kept = {
            name: [stays or index in opened.get(name, ()) for index, stays in enumerate(mask)]
            for name, mask in self._kept.items()
        }
        return _Decision(bits, kept)

    def decision_of(self, plan: Plan) -> _Decision:
        """The decision of a plan."""
        masks = {}
        for name, gate in self.attachment.channel_gates.items():
            kept = set(plan.kept.get(name, range(gate.channels)))
            masks[name] = gate.by_gate(torch.tensor([index in kept for index in range(gate.channels)])).tolist()
        limited = {entry.name: plan.bits[entry.name] for entry in self._widths}
        return _Decision({**self._bits, **limited}, masks)

    def plan(self, decision: _Decision) -> Plan:
        """The plan of a decision, with as many channels in every group as the spec asks for."""
        kept = complete_groups(decision.kept, self._logits, self._groups, self._multiple)
        return make_plan(self.attachment, decision.bits, channels_of(self.attachment, kept))

    def allows(self, plan: Plan) -> bool:
        """Whether the counted cost of a plan is within the budget."""
        costs = counted(self.budget, self.attachment.cost_model, plan)
        return all(costs[name] <= limit for name, limit in self.budget.limits.items())

    def fill(self, decision: _Decision) -> Plan:
        """Take back bits and channels one by one where they fit, those with the largest logits first.

        Milliseconds can fall with wider tensors: there everything is tried again as long as something fits.
        """
        plan = self.plan(decision)
        decision = _Decision(decision.bits, self.decision_of(plan).kept)
        while True:
            decision, filled = self._filled(decision, plan)
            if self.budget.table is None or filled == plan:
                return filled
            plan = filled

    def _filled(self, decision: _Decision, plan: Plan) -> tuple[_Decision, Plan]:
        """The decision and its plan after every bit and channel was tried, until it does not fit."""
        units: list[_Width | _Channels] = [*self._widths]
        units += [_Channels(entry, self._logits, self._multiple) for entry in self._groups]
        waiting = [(-gain, number) for number, unit in enumerate(units) if (gain := unit.gain(decision)) is not None]
        heapq.heapify(waiting)
        while waiting:
            number = heapq.heappop(waiting)[1]
            for larger in islice(units[number].larger(decision), 1 if self.budget.table is None else None):
                candidate = self.plan(larger)
                if self.allows(candidate):
                    decision, plan = larger, candidate
                    gain = units[number].gain(decision)
                    if gain is not None:
                        heapq.heappush(waiting, (-gain, number))
                    break
        return decision, plan


def _width_of(name: str, quantizer: Quantizer, most_bits: int | None) -> _Width:
    widths = tuple(bits for bits in quantizer.bits if most_bits is None or bits <= most_bits) or quantizer.bits[:1]
    return _Width(name, widths, quantizer.gates.logits.detach().tolist()[: len(widths) - 1])


def _limited_tensors(attachment: Attachment, budget: Budget) -> list[str]:
    """The tensors whose widths a limit depends on: weights, tables where bytes are limited, or bit operations of
    recurrent layers, activations where bit operations or milliseconds are, and the operands of float operations where
    milliseconds are."""
    topology, limits = attachment.topology, set(budget.limits)
    names = list(topology.weight_tensors)
    operations = bool(limits & {"bops", "relative_bops"})
    for name, table in topology.table_tensors.items():
        if "weight_bytes" in limits or (operations and table.kind == RECURRENT):
            names.append(name)
    if limits != {"weight_bytes"}:
        names += [activation.name for activation in topology.activations]
    if "latency_ms" in limits:
        names += topology.operand_tensors
    return names


def _largest(most: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number from 0 to `most` that fits, if all below one that fits do; None where 0 does not."""
    if not fits(0):
        return None
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
