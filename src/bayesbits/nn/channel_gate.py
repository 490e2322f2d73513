"""Pruning: one gate for every output channel of a layer.

The gate stands after bias and norm and before the nonlinearity. By linearity it is the paper's z_2 on the rows of
the weight, with one difference that matters: the bias goes too, so that a pruned channel is exactly zero.

The channels of an attention head are a block with one gate, which multiplies the values. While it learns, queries and
keys stay as they are: they would only change the softmax. Where the choice is final, they are zero too, as nothing
reads them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.functional.gates import INITIAL_LOGIT
from bayesbits.nn.gates import Gates


class ChannelGate(nn.Module):
    """Switches channels: multiply by `values()`, or call it on a tensor.

    `fixed` means that the channels are decided: the values are exactly 0 or 1 in training too.
    """

    may_close: Tensor
    gate_of: Tensor
    deciding: Tensor
    in_blocks = False
    all_decide = True
    idle = False

    def __init__(
        self,
        channels: int,
        *,
        gates: str = "hard_concrete",
        may_close: Sequence[bool] | None = None,
        blocks: Sequence[int] | None = None,
        deciding: Sequence[bool] | None = None,
    ) -> None:
        """Without `blocks` every channel has a gate of its own.

        Args:
            channels: The number of channels.
            gates: The kind of gates.
            may_close: Which channels can be removed at all; the others stay open. All can, by default.
            blocks: A number for every channel; those with the same one have one gate.
            deciding: Which channels are multiplied while the gates learn. All are, by default.
        """
        super().__init__()
        numbers = list(range(channels)) if blocks is None else list(blocks)
        order = {number: gate for gate, number in enumerate(dict.fromkeys(numbers))}
        self.gates = Gates(len(order), kind=gates)
        self.fixed = False
        self.all_may_close = may_close is None or all(may_close)
        self.in_blocks = len(order) < channels
        self.all_decide = deciding is None or all(deciding)
        masks = {"may_close": may_close, "deciding": deciding}
        for name, given in masks.items():
            mask = torch.ones(channels, dtype=torch.bool) if given is None else torch.tensor(given)
            self.register_buffer(name, mask, persistent=False)
        self.gate_numbers = [order[number] for number in numbers]
        """The gate of each channel."""
        self.register_buffer("gate_of", torch.tensor(self.gate_numbers), persistent=False)
        self.register_load_state_dict_pre_hook(_keep_blocks_without_state)  # type: ignore[no-untyped-call]

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self.may_close.numel()

    @property
    def final(self) -> bool:
        """Whether the channels are decided."""
        return self.fixed

    def spread(self, values: Tensor) -> Tensor:
        """One value for each gate as one for each channel."""
        return values.index_select(0, self.gate_of) if self.in_blocks else values

    def by_gate(self, channels: Tensor) -> Tensor:
        """One value for each channel as one for each gate, which is that of all of its channels."""
        if not self.in_blocks:
            return channels
        return channels.new_empty(self.gates.logits.shape).scatter(0, self.gate_of.to(channels.device), channels)

    def values(self) -> Tensor:
        """One value for each channel: to multiply scale and shift of a batch norm with, or weight rows and bias."""
        values: Tensor = self.gates.decision().to(self.gates.logits.dtype) if self.fixed else self.gates()
        values = self.spread(values)
        if not self.all_decide and not self.fixed:
            values = torch.where(self.deciding, values, 1.0)
        return values if self.all_may_close else torch.where(self.may_close, values, 1.0)

    def forward(self, x: Tensor, axis: int = 1) -> Tensor:
        """x with its channels gated, in the dtype of x."""
        shape = [1] * x.dim()
        shape[axis] = -1
        return x * self.values().to(x.dtype).reshape(shape)

    def kept(self) -> Tensor:
        """True for the channels that stay, by the test-time decision."""
        return self.spread(self.gates.decision()) | ~self.may_close

    def fix(self, kept: Sequence[bool] | Tensor | None = None) -> None:
        """Make a choice of channels final; without one, the present decision."""
        mask = self.kept() if kept is None else torch.as_tensor(kept, dtype=torch.bool)
        if mask.shape != self.may_close.shape:
            raise ValueError(f"{self.channels} channels need as many choices, got shape {tuple(mask.shape)}")
        with torch.no_grad():
            chosen = self.by_gate(mask.to(self.gate_of.device))
            self.gates.logits.copy_(torch.where(chosen, INITIAL_LOGIT, -INITIAL_LOGIT))
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


def _keep_blocks_without_state(gate: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """In a state from before blocks had gates all of them stay."""
    assert isinstance(gate, ChannelGate)
    if gate.in_blocks and not any(key.startswith(prefix) for key in state):
        state[f"{prefix}gates.logits"] = torch.full_like(gate.gates.logits, INITIAL_LOGIT)
        state[f"{prefix}_extra_state"] = torch.tensor(1)


class ChannelFollower(nn.Module):
    """The gate of a layer that has none of its own: a channel is on where any of its producers' is.

    That is a depthwise layer, whose producers are those of its channels. A layer of queries or keys follows the gates
    of the values, and only once these are final (`when_fixed`); until then it has no gate.

    `producers` holds, for each producer, its gate (None: it is never pruned) and the index of the producer's channel
    that each channel here comes from; -1 where the producer does not make that channel. A channel without a producer is
    always on.
    """

    index: Tensor

    def __init__(
        self, producers: Sequence[tuple[ChannelGate | None, Sequence[int]]], *, when_fixed: bool = False
    ) -> None:
        super().__init__()
        self.when_fixed = when_fixed
        # A plain list: the gates are owned by the network's attachment.
        self.producers = [gate for gate, _ in producers if gate is not None]
        total = sum(gate.channels for gate in self.producers)  # behind all values stand a zero and a one
        rows, offset = [], 0
        for gate, channels in producers:
            rows.append([total if i < 0 else total + 1 if gate is None else offset + i for i in channels])
            offset += 0 if gate is None else gate.channels
        orphans = [total + all(row[i] == total for row in rows) for i in range(len(rows[0]))]
        self.register_buffer("index", torch.tensor([*rows, orphans]), persistent=False)

    @property
    def idle(self) -> bool:
        """Whether it gates nothing at present."""
        return self.when_fixed and not self.final

    @property
    def final(self) -> bool:
        """Whether the channels are decided."""
        return all(gate.fixed for gate in self.producers)

    def values(self) -> Tensor:
        """One value for each channel: 1 - product of (1 - z) over the producers."""
        values = torch.cat([gate.values() for gate in self.producers])
        values = torch.cat([values, torch.arange(2, dtype=values.dtype, device=values.device)])
        off = torch.ones_like(self.index[0], dtype=values.dtype)
        for row in self.index:
            off = off * (1 - values[row])
        return 1 - off
