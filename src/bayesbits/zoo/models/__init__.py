"""The networks of the zoo, by name.

    from bayesbits.zoo import models

    model = models.create("resnet18", num_classes=10, stem="cifar")
    models.load_checkpoint(model, "resnet18.pth")

Every network takes `num_classes`; the ImageNet ResNets also take `stem`, MobileNetV2 also `width`, the vision
transformer its sizes. The weights are random until a checkpoint is loaded, and no network is ever downloaded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from bayesbits.zoo.models.cifar_resnet import CifarResNet
from bayesbits.zoo.models.lenet5 import LeNet5
from bayesbits.zoo.models.mobilenetv2 import MobileNetV2
from bayesbits.zoo.models.resnet import ResNet, resnet18, resnet50
from bayesbits.zoo.models.trained_weights import load_checkpoint
from bayesbits.zoo.models.vgg7 import VGG7
from bayesbits.zoo.models.vit import VisionTransformer

__all__ = [
    "VGG7",
    "CifarResNet",
    "LeNet5",
    "MobileNetV2",
    "ResNet",
    "VisionTransformer",
    "create",
    "input_shape",
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
    "vit": VisionTransformer,
}

_SHAPES = {
    **dict.fromkeys(("lenet5", "vit"), (1, 28, 28)),
    **dict.fromkeys(("resnet18", "resnet50", "mobilenetv2"), (3, 224, 224)),
}
_CIFAR = (3, 32, 32)  # of all others


def names() -> tuple[str, ...]:
    """The names that `create` knows."""
    return tuple(_BUILDERS)


def create(name: str, **options: Any) -> nn.Module:
    """A new network with random weights; `options` are those of the network's own constructor."""
    if name not in _BUILDERS:
        raise ValueError(f"the zoo has no network named {name!r}; it has {', '.join(names())}")
    return _BUILDERS[name](**options)


def input_shape(name: str) -> tuple[int, int, int]:
    """Channels, height and width of the images that a network was made for."""
    return _SHAPES.get(name, _CIFAR)
