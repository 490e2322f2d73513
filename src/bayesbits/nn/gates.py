"""Learnable gates, and the bank that draws the noise of all gates of a network at once.

The noise comes from `functional.noise`, a hash of a counter; `GateBank.draw` is where a network uses it.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.functional import decide, gate_values, probability_on
from bayesbits.functional.custom_ops import compute_once, snapshot
from bayesbits.functional.gates import INITIAL_LOGIT, RANDOM_KINDS, check_kind
from bayesbits.functional.noise import counter_uniform
from bayesbits.utils.torch_private import in_backward


class Pass:
    """The forward pass that a bank has drawn for; gates use the drawn values only while it runs."""

    def __init__(self) -> None:
        self.running = False


# What a bank drew for one of its members: whether in training, the values of all members, where its own start and stop,
# its own while the pass runs, and the pass. After the pass only the values of all members are kept: a compiled pass
# returns what is kept, and every tensor that it returns costs a gradient. A plain tuple, as torch 2.11 does not compile
# one with names here.
Drawn = tuple[bool, Tensor, int, int, Tensor | None, Pass]


class Gates(nn.Module):
    """`size` gates that learn: random or soft values in training, the thresholded decision in evaluation.

    With `open_first` the values start with one more gate that is always open and has no parameter.
    """

    def __init__(self, size: int, *, kind: str = "hard_concrete", open_first: bool = False) -> None:
        super().__init__()
        check_kind(kind)
        self.kind = kind
        self.open_first = open_first
        self.logits = nn.Parameter(torch.full((size,), INITIAL_LOGIT))
        self._drawn: Drawn | None = None

    @torch.no_grad()
    def reopen(self) -> None:
        """Open all gates, as they are when they are made."""
        self.logits.fill_(INITIAL_LOGIT)

    def padded_logits(self) -> Tensor:
        """The logits, with an infinite one in front for the gate that is always open."""
        return nn.functional.pad(self.logits, (1, 0), value=math.inf) if self.open_first else self.logits

    def forward(self) -> Tensor:
        """The values for this forward pass: the bank's where there is one, else drawn here."""
        if self._drawn is not None:
            training, whole, start, stop, own, its_pass = self._drawn
            if training == self.training and (its_pass.running or is_recomputing()):
                return whole[start:stop] if own is None else own
        return _values(self.padded_logits(), self.kind, self.training)

    def decision(self) -> Tensor:
        """True where a gate is open at test time (the open first one is not among these)."""
        return decide(self.logits.detach())

    def probability_on(self) -> Tensor:
        """P(z > 0) of every gate that learns, for which the penalties charge."""
        return probability_on(self.logits)

    def extra_repr(self) -> str:
        return f"{self.logits.numel()}, kind={self.kind!r}"

    def __getstate__(self) -> dict[str, Any]:
        # A drawn value belongs to one forward pass and its graph; copies and files go without it.
        return {**self.__dict__, "_drawn": None}


class GateBank(nn.Module):
    """Draws all gates of a network in one go; call `draw()` before each forward pass and `end_pass()` after it.

    Parts of a forward pass that checkpointing repeats during backward use the values of the latest draw: with several
    passes before one backward, checkpointed parts of the earlier ones would be repeated with the wrong gates.

    The noise is a function of the seed and of a counter, both in the buffer `counter`: it is equal on all
    ranks if the buffer is, and a state_dict continues it exactly. `bb.search` sets the buffer; in a loop of your own
    DDP broadcasts it.
    """

    counter: Tensor

    def __init__(self, members: Iterable[Gates], *, seed: int | None = None) -> None:
        super().__init__()
        # A plain list: the members are owned by the network's own modules.
        self.members = list(members)
        self.present_pass = Pass()
        seed = (torch.initial_seed() if seed is None else seed) % 2**32
        self.register_buffer("counter", torch.tensor([seed, 0]))

    def draw(self) -> None:
        """Give every member its values for the coming forward pass; one noise draw a gate."""
        if not is_recomputing() and any(member.training for member in self.members):
            self.counter.select(0, 1).add_(1)
        self.present_pass.running = True
        by_mode: dict[tuple[str, bool], list[Gates]] = {}
        for member in self.members:
            by_mode.setdefault((member.kind, member.training), []).append(member)
        for (kind, training), members in by_mode.items():
            logits = torch.cat([member.padded_logits() for member in members])
            uniform = None
            if training and kind in RANDOM_KINDS:
                uniform = counter_uniform(snapshot(self.counter), logits.numel()).to(logits)
            values = _values(logits, kind, training, uniform)
            values = compute_once(values) if training else values
            sizes = [member.logits.numel() + member.open_first for member in members]
            start = 0
            for member, own in zip(members, torch.split(values, sizes), strict=True):
                stop = start + own.numel()
                member._drawn = (training, values, start, stop, own, self.present_pass)
                start = stop

    def end_pass(self) -> None:
        """End the forward pass: members that are used outside of one draw for themselves."""
        self.present_pass.running = False
        for member in self.members:
            if member._drawn is not None:
                training, whole, start, stop, _, its_pass = member._drawn
                member._drawn = (training, whole, start, stop, None, its_pass)

    def latest(self) -> tuple[Tensor, Tensor]:
        """The logits of all gates that learn, and the values that were drawn last, without a gradient."""
        values = []
        for member in self.members:
            assert member._drawn is not None, "the network has not run yet"
            _, whole, start, stop, _, _ = member._drawn
            values.append(whole[start + member.open_first : stop].detach())
        return torch.cat([member.logits for member in self.members]), torch.cat(values)

    def extra_repr(self) -> str:
        return f"{len(self.members)} members, {sum(member.logits.numel() for member in self.members)} gates"


def is_recomputing() -> bool:
    """Whether this forward runs inside backward: it is checkpointing's second one, with the first one's noise."""
    return not torch.compiler.is_compiling() and in_backward()


def _values(logits: Tensor, kind: str, training: bool, uniform: Tensor | None = None) -> Tensor:
    return gate_values(logits, kind, uniform) if training else decide(logits).to(logits.dtype)
