"""A network whose layers are timed."""

import torch
from torch import nn

import bayesbits as bb

EXAMPLE = torch.zeros(1, 2, 8, 8)
NARROW = bb.Spec(bits=(4, 8))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 40, 3, padding=1), nn.Conv2d(40, 40, 3, padding=1)
        self.third, self.depthwise = nn.Conv2d(40, 40, 3, padding=1), nn.Conv2d(40, 40, 3, groups=40)
        self.head = nn.Linear(40, 3)

    def forward(self, x):
        x = self.third(self.second(self.first(x).relu()).relu()).relu()
        return self.head(self.depthwise(x).relu().amax((2, 3)))


def network():
    torch.manual_seed(0)
    return Network().eval()
