"""A network with a dead channel in front of batch norms that are folded into no layer."""

import torch
from torch import Tensor, nn

import bayesbits as bb

IMAGES = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
DEAD = 2


class PreActivation(nn.Module):
    """The front of a DenseNet: a stem, and a batch norm that reads the stem's output and a further layer's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.stem_norm, self.relu = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.norm1, self.conv1 = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.norm2, self.conv2 = nn.BatchNorm2d(16), nn.Conv2d(16, 4, 1)
        for norm in (self.stem_norm, self.norm1, self.norm2):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.5, 0.5)
            norm.momentum = 1.0
        nn.init.constant_(self.stem_norm.weight[DEAD], 1e-7)
        nn.init.constant_(self.stem_norm.bias[DEAD], 0.7123)
        self.train()(IMAGES)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem_norm(self.stem(x)))
        x = torch.cat([x, self.conv1(self.norm1(x).relu())], dim=1)
        return self.conv2(self.norm2(x).relu())


def fixed(model: nn.Module, bits: int = 8) -> bb.Compressor:
    compressor = bb.attach(model, IMAGES[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([IMAGES[:4], IMAGES[4:]])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, bits))
    return compressor
