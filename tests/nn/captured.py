"""A network with residual additions whose hooks capture the operands."""

from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Operands of the addition: a batch norm, which has a gate as well, and a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.way = nn.Conv2d(4, 4, 1)
        self.after = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.norm(self.conv(x)) + self.way(x))


def capture(module: nn.Module, inputs: Any, output: Tensor) -> None:
    module.seen = output


class Captured(nn.Module):
    """Returns what hooks saw of the operands beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.more = nn.Conv2d(3, 4, 3, padding=1), Block(), Block()
        self.head = nn.Linear(4, 5)
        for module in self.captured():
            module.register_forward_hook(capture)

    def captured(self) -> tuple[nn.Module, ...]:
        return self.block.norm, self.block.way, self.more.norm

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.more(self.block(torch.relu(self.stem(x))))
        seen = [module.seen for module in self.captured()]
        for module in self.captured():
            del module.seen
        return self.head(x.mean((2, 3))), *seen
