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

    def __init__(self, channels: int, *, gates: str = "hard_concrete") -> None:
        super().__init__()
        self.gates = Gates(channels, kind=gates)
        self.fixed = False

    def values(self) -> Tensor:
        """One value for each channel: to multiply scale and shift of a batch norm with, or weight rows and bias."""
        if self.fixed:
            return self.gates.decision().to(self.gates.logits.dtype)
        values: Tensor = self.gates()
        return values

    def forward(self, x: Tensor, axis: int = 1) -> Tensor:
        """x with its channels gated, in the dtype of x."""
        shape = [1] * x.dim()
        shape[axis] = -1
        return x * self.values().to(x.dtype).reshape(shape)

    def kept(self) -> Tensor:
        """True for the channels that stay, by the test-time decision."""
        return self.gates.decision()

    def fix(self, kept: Sequence[bool] | Tensor | None = None) -> None:
        """Make a choice of channels final; without one, the present decision."""
        mask = self.kept() if kept is None else torch.as_tensor(kept, dtype=torch.bool)
        if mask.shape != self.gates.logits.shape:
            raise ValueError(
                f"{self.gates.logits.numel()} channels need as many choices, got shape {tuple(mask.shape)}"
            )
        with torch.no_grad():
            self.gates.logits.copy_(torch.where(mask, INITIAL_LOGIT, -INITIAL_LOGIT))
        self.fixed = True

    def learn(self) -> None:
        """Let the gates decide (again)."""
        self.fixed = False

    def get_extra_state(self) -> Tensor:
        """Whether the choice is final: a tensor, so that any checkpoint format can hold it."""
        return torch.tensor(int(self.fixed))

    def set_extra_state(self, state: Tensor) -> None:
        self.fixed = bool(state.item())

    def extra_repr(self) -> str:
        kept = self.kept()
        return f"{'fixed' if self.fixed else 'learning'}, keeps {int(kept.sum())} of {kept.numel()}"
