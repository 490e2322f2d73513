"""Small networks to attach to."""

import torch
from torch import Tensor, nn

import bayesbits as bb


def attached(model: nn.Module, x: Tensor, spec: bb.Spec | None = None) -> bb.Compressor:
    compressor = bb.attach(model, x, spec)
    compressor.calibrate([x])
    return compressor


class Stem(nn.Module):
    """A network whose first layer has a name, as fine-tuners freeze it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.stem(x)))
