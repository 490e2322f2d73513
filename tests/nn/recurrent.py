"""Small networks with recurrent layers, and what they compute with weights that are rounded by hand."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

import bayesbits as bb

FEATURES, HIDDEN, LENGTH = 5, 6, 3


class Sequences(nn.Module):
    """A convolution over time, a recurrent layer, and classes for every position."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.mix = nn.Conv1d(3, FEATURES, 3, padding=1)
        self.cell = kind(FEATURES, HIDDEN, batch_first=True, **options)  # type: ignore[misc]
        self.head = nn.Linear(HIDDEN * (2 if self.cell.bidirectional else 1), 2)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.cell(torch.relu(self.mix(x)).transpose(1, 2))[0]
        return self.head(states)


def inputs(count: int = 3) -> Tensor:
    return torch.randn(count, 3, LENGTH, generator=torch.Generator().manual_seed(count))


def compressed(
    kind: type[nn.RNNBase] = nn.LSTM, *, per_channel: bool = False, spec: dict[str, Any] | None = None, **options: Any
) -> bb.Compressor:
    """The network with calibrated quantizers, its weights from one seed."""
    torch.manual_seed(0)
    model = Sequences(kind, **options)
    with torch.no_grad():
        for parameter in model.cell.parameters():
            parameter[0] *= 9  # a row for which the range of the others is far too small
    compressor = bb.attach(model.eval(), inputs(), bb.Spec(per_channel_weights=per_channel, **(spec or {})))
    compressor.calibrate([inputs()])
    return compressor


def rounded(weight: Tensor, bits: int, *, per_channel: bool) -> Tensor:
    """A weight on the grid in which its largest number, or that of each row, is code 127 of 8 bits."""
    largest = weight.abs().amax(1, keepdim=True) if per_channel else weight.abs().max()
    step = largest * 255 / 254 * 2 / (2**bits - 1)
    highest = 2 ** (bits - 1) - 1
    return torch.round(weight / step).clamp(-highest, highest) * step


def rounded_cell(cell: nn.RNNBase, bits: dict[str, int], *, per_channel: bool) -> nn.RNNBase:
    """A float layer of torch with the rounded weights of another one, or of what is attached to one."""
    made = type(cell)(
        FEATURES, HIDDEN, cell.num_layers, batch_first=True, bias=cell.bias, bidirectional=cell.bidirectional
    )  # type: ignore[call-arg]
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            value = copy.deepcopy(getattr(cell, name)).detach()
            parameter.copy_(rounded(value, bits[name], per_channel=per_channel) if name in bits else value)
    return made
