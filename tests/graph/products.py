"""Networks whose weights are multiplied in every way but the standard call of a layer, for the tests of products."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


class Padded(nn.Conv2d):
    """Pads inside, more behind than in front, as frameworks with "same" padding do."""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (size - 1 for size in self.kernel_size)
        return super().forward(F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)))


class Standardized(nn.Conv2d):
    """Multiplies with its weight standardized by output channel."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(rows, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class InputsFirst(nn.Module):
    """A linear layer whose weight is [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs) / 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return rows.view(*x.shape[:-1], -1)


class Functional(nn.Module):
    """Multiplies with parameters of its own by functions, once around a layer with a weight of the same shape."""

    def __init__(self, channels: int, *, transposed: bool = False) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(channels, channels, 3, 3) / (9 * channels) ** 0.5)
        self.inner = nn.Conv2d(channels, channels, 3, padding=1)
        self.last = nn.Parameter(torch.randn(channels, channels, 3, 3) / (9 * channels) ** 0.5)
        self.shift = nn.Parameter(torch.randn(channels) / 4)
        self.function = F.conv_transpose2d if transposed else F.conv2d

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.inner(F.relu(self.function(x, self.first, self.shift, padding=1))))
        return self.function(x, bias=None, weight=self.last, padding=1)


KINDS = ("padded", "standardized", "depthwise", "functional", "transposed", "normed", "strided")


def make_block(kind: str, channels: int) -> nn.Module:
    """A layer of one kind that keeps the number of channels."""
    if kind in ("functional", "transposed"):
        return Functional(channels, transposed=kind == "transposed")
    if kind == "normed":
        return weight_norm(nn.Conv2d(channels, channels, 3, padding=1))
    if kind == "standardized":
        return Standardized(channels, channels, 3, padding=1, bias=False)
    groups = channels if kind == "depthwise" else 1
    return Padded(channels, channels, (2, 3), stride=2 if kind == "strided" else 1, groups=groups)


class Products(nn.Module):
    """A chain of blocks of some kinds, a matrix product, and two linear layers of other forms."""

    def __init__(self, kinds: list[tuple[str, bool]]) -> None:
        super().__init__()
        self.stem = Padded(3, 6, 3, stride=2)
        self.blocks = nn.ModuleList(make_block(kind, 6) for kind, _ in kinds)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) if normed else nn.Identity() for _, normed in kinds)
        self.matrix = nn.Parameter(torch.randn(6, 5) / 2)
        self.turned = nn.Parameter(torch.randn(4, 5) / 2)
        self.head = InputsFirst(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = norm(block(F.relu(x)))
        x = F.gelu(F.relu(x).mean((2, 3)) @ self.matrix)
        return self.head(F.gelu(torch.matmul(x, self.turned.T)))
