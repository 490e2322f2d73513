"""The rules by which operations pass channels on: which keep zeros, and the reasons of those that do not."""

from typing import Any

import pytest
import torch
from torch import nn

from bayesbits.graph.channels import TAKES_FACTORS
from bayesbits.graph.trace import trace
from tests.graph.networks import IMAGES, Between, output_of, randomize
from tests.graph.removal import check_every_group, silence

KEEPING: dict[str, Any] = {
    "hardtanh": nn.Hardtanh(-1, 1),
    "mish": nn.Mish(),
    "one slope": nn.PReLU(),
    "slopes": nn.PReLU(6),
    "scale": lambda x: x * torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, -1.0])[:, None, None],
    "clamp": lambda x: x.clamp(min=0.0),
    "scalar": lambda x: x * 3 / 2,
    "own product": lambda x: x * (x > 0),
    "upsample": nn.Upsample(scale_factor=2),
    "average pool": nn.AvgPool2d(2),
    "transposed": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "dropout": nn.Dropout2d(0.5),
    "transposed convolution": nn.ConvTranspose2d(6, 6, 2, stride=2),
    "spatial mask": lambda x: x * torch.ones(8, 8),
    "instance norm": nn.Sequential(nn.InstanceNorm2d(6), nn.PReLU()),
    "instance norm with a shift": nn.InstanceNorm2d(6, affine=True),
    "instance norm with statistics": nn.InstanceNorm2d(6, track_running_stats=True),
    "mean of stacked branches": lambda x: torch.stack([x, x.relu(), x.flip(1)]).mean(0),
    "largest of parts": lambda x: torch.cat((x, x), 1).unflatten(1, (3, 4)).amax(1).repeat(1, 2, 1, 1)[:, :6],
    "flipped twin": lambda x: x + x.flip(1),
}
LOSING: dict[str, tuple[Any, str]] = {
    "sigmoid": (nn.Sigmoid(), "passes sigmoid"),
    "softplus": (nn.Softplus(), "passes softplus"),
    "hardtanh": (nn.Hardtanh(0.5, 1), "passes hardtanh"),
    "constant": (lambda x: x + 1, "passes add"),
    "exponential": (torch.exp, "passes exp"),
    "batch norm": (
        nn.Sequential(nn.ReLU(), nn.BatchNorm2d(6)),
        "passes batch norm middle.1, which is not one layer's own",
    ),
    "group norm": (nn.GroupNorm(2, 6), "passes group_norm"),
    "group norm of each channel": (nn.GroupNorm(6, 6), "passes group_norm"),
    "instance norm behind a function": (nn.Sequential(nn.ReLU(), nn.InstanceNorm2d(6)), TAKES_FACTORS),
    "instance norm by a function": (nn.functional.instance_norm, TAKES_FACTORS),
    "instance norm over channels": (
        lambda x: nn.functional.instance_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
        TAKES_FACTORS,
    ),
    "norm of each channel by a function": (
        lambda x: nn.functional.normalize(x, dim=(2, 3)),
        "passes linalg_vector_norm",
    ),
    "norm of each channel by hand": (
        lambda x: x / (x.square().mean((2, 3), keepdim=True) + 1e-5).sqrt(),
        "passes add",
    ),
    "largest of each channel is one": (lambda x: x / x.abs().amax((2, 3), keepdim=True), "passes div"),
    "layer norm": (nn.LayerNorm(8), "passes layer_norm"),
    "softmax": (nn.Softmax(dim=1), "passes softmax"),
    "value per channel": (
        lambda x: x * torch.rand(6, 1, 1).sin(),
        "passes mul with a value per channel (the output of rand)",
    ),
    "sorted": (lambda x: x.sort(dim=1).values, "passes sort"),
    "gate": (lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), "passes sigmoid"),
    "mean over channels": (lambda x: x - x.mean(1, keepdim=True), "passes mean over channels"),
    "mean with a constant": (
        lambda x: torch.stack([x, torch.ones(x.shape)]).mean(0),
        "passes mean with the output of ones",
    ),
    "nonzero border": (lambda x: nn.functional.pad(x, (1, 1), value=1.0), "is a constant"),
    "grouped": (nn.Conv2d(6, 6, 1, groups=2), "feeds grouped convolution middle"),
}


# Zeros arrive as zeros here; the channels stay because a tensor beside them, or groups, could not be cut with them.
# Behind a norm of each channel nothing but a closed gate would be seen.
CAUTIOUS = (
    "value per channel", "gate", "grouped", "layer norm", "instance norm behind a function",
    "instance norm by a function", "norm of each channel by a function", "norm of each channel by hand",
    "largest of each channel is one",
)  # fmt: skip


@pytest.mark.parametrize("name", KEEPING)
def test_what_keeps_zeros(name: str) -> None:
    model = randomize(Between(KEEPING[name]))
    topology = trace(model, IMAGES)
    assert topology.group("first").reason is None
    check_every_group(model, IMAGES, topology)


@pytest.mark.parametrize("name", LOSING)
def test_what_does_not_keep_zeros(name: str) -> None:
    middle, reason = LOSING[name]
    model = randomize(Between(middle))
    topology = trace(model, IMAGES)
    assert topology.group("first").reason == reason
    if name not in CAUTIOUS:  # what arrives at the reader is really not zero, so that deleting it would be wrong
        silence(model, topology, set(topology.group("first").channels[:2]))
        before = output_of(model, IMAGES)
        model.get_submodule("last").weight.data[:, :2] = 0.0
        assert float((output_of(model, IMAGES) - before).abs().max()) > 1e-2
