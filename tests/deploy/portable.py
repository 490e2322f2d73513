"""A small CNN in the portable form, which the tests of that form and of OpenVINO share; nothing changes it."""

from functools import cache

import torch
from onnx import ModelProto
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import to_onnx
from tests.deploy.exported import Exported, exported


class Block(nn.Module):
    """A residual block with an absorbed ReLU, a pool, a depthwise layer, a linear layer with rows, and a Gemm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.third = nn.Conv2d(16, 16, 1, bias=False)
        self.rows = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.first(x).relu(), 2)
        x = x + self.third(nn.functional.relu6(self.second(x)))
        x = nn.functional.gelu(self.rows(x.flatten(2).mT))
        return self.head(x.mean(1))


EXAMPLE = torch.zeros(2, 3, 8, 8)
SPECS = {name: bb.Spec.for_backend(name) for name in ("openvino", "tensorrt")}
SPECS["narrow"] = bb.Spec(bits=(2, 4, 8), residual_bits=8)


@cache
def network(name: str) -> Exported:
    """The block under one of the specs: with 8 bits everywhere, or with random widths from 2 to 8."""
    bits = (2, 4, 8) if name == "narrow" else (8,)
    return exported(Block(), EXAMPLE, spec=SPECS[name], bits=bits, drop=0.0, seed=3)


@cache
def file(name: str) -> ModelProto:
    """Its file."""
    return to_onnx(network(name).small, EXAMPLE, "qdq")


def copy_of(model: ModelProto) -> ModelProto:
    """A file that a test may change."""
    copied = ModelProto()
    copied.CopyFrom(model)
    return copied
