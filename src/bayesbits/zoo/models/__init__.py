"""The networks of the zoo, by name.

    from bayesbits.zoo import models

    model = models.create("resnet18", num_classes=10, stem="cifar")
    models.load_checkpoint(model, "resnet18.pth")

Every network takes `num_classes`; the ImageNet ResNets also take `stem`, MobileNetV2 also `width`. The weights are
random until a checkpoint is loaded, and no network is ever downloaded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from bayesbits.zoo.models.checkpoint import load_checkpoint
from bayesbits.zoo.models.cifar_resnet import CifarResNet
from bayesbits.zoo.models.lenet5 import LeNet5
from bayesbits.zoo.models.mobilenetv2 import MobileNetV2
from bayesbits.zoo.models.resnet import ResNet, resnet18, resnet50
from bayesbits.zoo.models.vgg7 import VGG7

__all__ = [
    "VGG7",
    "CifarResNet",
    "LeNet5",
    "MobileNetV2",
    "ResNet",
    "create",
    "load_checkpoint",
    "names",
    "resnet18",
    "resnet50",
]

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "vgg7": VGG7,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenetv2": MobileNetV2,
    "resnet20": partial(CifarResNet, 20),
    "resnet32": partial(CifarResNet, 32),
    "resnet44": partial(CifarResNet, 44),
    "resnet56": partial(CifarResNet, 56),
}


def names() -> tuple[str, ...]:
    """The names that `create` knows."""
    return tuple(_BUILDERS)


def create(name: str, **options: Any) -> nn.Module:
    """A new network with random weights; `options` are those of the network's own constructor."""
    if name not in _BUILDERS:
        raise ValueError(f"the zoo has no network named {name!r}; it has {', '.join(names())}")
    return _BUILDERS[name](**options)
