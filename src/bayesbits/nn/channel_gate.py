"""Pruning: one gate for every output channel of a layer.

The gate stands after bias and batch norm and before the nonlinearity. By linearity it is the paper's z_2 on the rows of
the weight, with one difference that matters: the bias goes too, so that a pruned channel is exactly zero.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesbits.functional.gates import INITIAL_LOGIT
from bayesbits.nn.gates import Gates


class ChannelGate(nn.Module):
    """Switches channels: multiply by `values()`, or call it on a tensor.

    `fixed` means that the channels are decided: the values are exactly 0 or 1 in training too.
    """

    may_close: Tensor

    def __init__(self, channels: int, *, gates: str = "hard_concrete", may_close: Sequence[bool] | None = None) -> None:
        """`may_close` names the channels that can be removed at all; the others stay open. All can, by default."""
        super().__init__()
        self.gates = Gates(channels, kind=gates)
        self.fixed = False
        self.all_may_close = may_close is None or all(may_close)
        mask = torch.ones(channels, dtype=torch.bool) if may_close is None else torch.tensor(may_close)
        self.register_buffer("may_close", mask, persistent=False)

    def values(self) -> Tensor:
        """One value for each channel: to multiply scale and shift of a batch norm with, or weight rows and bias."""
        values: Tensor = self.gates.decision().to(self.gates.logits.dtype) if self.fixed else self.gates()
        return values if self.all_may_close else torch.where(self.may_close, values, 1.0)

    def forward(self, x: Tensor, axis: int = 1) -> Tensor:
        """x with its channels gated, in the dtype of x."""
        shape = [1] * x.dim()
        shape[axis] = -1
        return x * self.values().to(x.dtype).reshape(shape)

    def kept(self) -> Tensor:
        """True for the channels that stay, by the test-time decision."""
        return self.gates.decision() | ~self.may_close

    def fix(self, kept: Sequence[bool] | Tensor | None = None) -> None:
        """Make a choice of channels final; without one, the present decision."""
        mask = self.kept() if kept is None else torch.as_tensor(kept, dtype=torch.bool)
        if mask.shape != self.gates.logits.shape:
            raise ValueError(
                f"{self.gates.logits.numel()} channels need as many choices, got shape {tuple(mask.shape)}"
            )
        with torch.no_grad():
            self.gates.logits.copy_(torch.where(mask, INITIAL_LOGIT, -INITIAL_LOGIT))
        self._enter(fixed=True)

    def learn(self) -> None:
        """Let the gates decide (again)."""
        self._enter(fixed=False)

    def _enter(self, *, fixed: bool) -> None:
        """Parallel training waits for every gradient that is asked for; what was frozen while it could learn, stays."""
        frozen = not self.fixed and not self.gates.logits.requires_grad
        self.fixed = fixed
        self.gates.logits.requires_grad_(not fixed and not frozen)

    def get_extra_state(self) -> Tensor:
        """Whether the choice is final: a tensor, so that any checkpoint format can hold it."""
        return torch.tensor(int(self.fixed))

    def set_extra_state(self, state: Tensor) -> None:
        self._enter(fixed=bool(state.item()))

    def extra_repr(self) -> str:
        kept = self.kept()
        return f"{'fixed' if self.fixed else 'learning'}, keeps {int(kept.sum())} of {kept.numel()}"


class ChannelFollower(nn.Module):
    """The gate of a depthwise layer, which has none of its own: a channel is on where any of its producers' is.

    `producers` holds, for each producer, its gate (None: it is never pruned) and the index of the producer's channel
    that each channel here comes from; -1 where the producer does not make that channel. A channel without a producer is
    always on.
    """

    index: Tensor

    def __init__(self, producers: Sequence[tuple[ChannelGate | None, Sequence[int]]]) -> None:
        super().__init__()
        # A plain list: the gates are owned by the network's attachment.
        self.producers = [gate for gate, _ in producers if gate is not None]
        total = sum(gate.gates.logits.numel() for gate in self.producers)  # behind all values stand a zero and a one
        rows, offset = [], 0
        for gate, channels in producers:
            rows.append([total if i < 0 else total + 1 if gate is None else offset + i for i in channels])
            offset += 0 if gate is None else gate.gates.logits.numel()
        orphans = [total + all(row[i] == total for row in rows) for i in range(len(rows[0]))]
        self.register_buffer("index", torch.tensor([*rows, orphans]), persistent=False)

    def values(self) -> Tensor:
        """One value for each channel: 1 - product of (1 - z) over the producers."""
        values = torch.cat([gate.values() for gate in self.producers])
        values = torch.cat([values, torch.arange(2, dtype=values.dtype, device=values.device)])
        off = torch.ones_like(self.index[0], dtype=values.dtype)
        for row in self.index:
            off = off * (1 - values[row])
        return 1 - off
