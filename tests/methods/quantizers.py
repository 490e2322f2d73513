"""Quantizers of every method, and a small network, for the tests of all of them."""

import torch
from torch import Tensor, nn

from bayesbits.methods import METHODS
from bayesbits.nn import GatedQuantizer, Quantizer

WEIGHT, ACTIVATION = True, False
EVERY = [(name, weight) for name in METHODS for weight in (WEIGHT, ACTIVATION)]
"""Every method, for weights and for activations."""


def make(name: str, weight: bool, bits: int = 4) -> Quantizer:
    """A quantizer as `attach` makes it, in training, with a range that ends at about 2."""
    torch.manual_seed(0)
    method = METHODS[name]
    made = method.weights if weight else method.activations
    if made is None:
        quantizer: Quantizer = GatedQuantizer(signed=weight, bits=(2, 4, 8), gates=method.gates or "hard_concrete")
    else:
        quantizer = made(weight=weight, bits=(2, 4, 8) if made.learns_width else (bits,))
    quantizer.set_range(2.0, signed=weight)
    if quantizer.needs_sample:
        quantizer.start(values(weight))
    return quantizer


def values(weight: bool, shape: tuple[int, ...] = (6, 4, 5, 3)) -> Tensor:
    """Numbers as a weight or an activation behind ReLU has them."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return x if weight else x.relu()


def network() -> nn.Module:
    """Two convolutions with batch norms, one of whose factors are negative, and two linear layers."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 16, 12), nn.ReLU(), nn.Linear(12, 4),
    )  # fmt: skip
    with torch.no_grad():
        model[1].weight[::2] *= -1.3
        for _ in range(4):
            model(IMAGES)
    return model


IMAGES = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(2))
LABELS = torch.arange(24) % 4
