"""Networks of the zoo without storage, and what is counted on them."""

from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.zoo import models

IMAGE_SHAPE = {
    "lenet5": (1, 28, 28),
    "vit": (1, 28, 28),
    "vgg7": (3, 32, 32),
    "resnet18": (3, 224, 224),
    "resnet50": (3, 224, 224),
    "mobilenetv2": (3, 224, 224),
    "resnet20": (3, 32, 32),
    "resnet32": (3, 32, 32),
    "resnet44": (3, 32, 32),
    "resnet56": (3, 32, 32),
}


def on_meta(name: str, **options: Any) -> nn.Module:
    """The network without storage: names, shapes and forward passes are free."""
    with torch.device("meta"):
        return models.create(name, **options)


def layer_macs(model: nn.Module, image_shape: tuple[int, ...]) -> list[int]:
    """MACs of each conv and linear layer for one image, in the order of the forward pass."""
    macs: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module.weight, Tensor)
        macs.append(output.numel() * module.weight[0].numel())

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    model.eval()(torch.empty(1, *image_shape, device="meta"))
    return macs


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def batch_norm_keys(name: str) -> list[str]:
    return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]
