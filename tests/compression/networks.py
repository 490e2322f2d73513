"""Networks of all kinds with inputs for them, and what tests ask of an attached one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bayesbits as bb
from bayesbits.zoo import models
from bayesbits.zoo.models import CifarResNet
from bayesbits.zoo.models.resnet import BasicBlock, Bottleneck, ResNet
from tests.graph.networks import OWN, TRANSFORMERS, randomize, transformer

FLOAT = bb.Spec(input_bits=32, residual_bits=None)


def short_mobilenetv2() -> nn.Module:
    """MobileNetV2 with the first six of its seventeen blocks, which are of every kind: a third of the layers."""
    model = models.create("mobilenetv2", num_classes=10, width=0.35)
    blocks, last = model.features[:7], model.features[-1]
    last[0] = nn.Conv2d(blocks[-1].conv[-1].num_features, last[0].out_channels, 1, bias=False)
    model.features = nn.Sequential(*blocks, last)
    return model


def narrow(model: nn.Module, by: int = 8) -> nn.Module:
    """The network with every number of channels, but those of images and classes, divided by this number."""

    def divided(channels: int) -> int:
        return channels // by if channels > 10 else channels

    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Conv2d):
            size, stride, padding = module.kernel_size, module.stride, module.padding
            channels = divided(module.in_channels), divided(module.out_channels)
            model.set_submodule(name, nn.Conv2d(*channels, size, stride, padding, bias=module.bias is not None))
        elif isinstance(module, nn.Linear):
            features = divided(module.in_features), divided(module.out_features)
            model.set_submodule(name, nn.Linear(*features, bias=module.bias is not None))
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            model.set_submodule(name, type(module)(divided(module.num_features)))
    return model


def short_transformers_mobilenet(model: nn.Module) -> nn.Module:
    """The MobileNetV2 of `transformers` with six of its sixteen blocks."""
    body = model.mobilenet_v2
    body.layer, last = body.layer[:6], body.conv_1x1.convolution
    body.conv_1x1.convolution = nn.Conv2d(
        body.layer[-1].reduce_1x1.convolution.out_channels, last.out_channels, 1, bias=False
    )
    return model


# Depth and width are those that the tests need: blocks of every kind, and few channels.
ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lambda: models.create("lenet5"), (4, 1, 28, 28)),
    "vgg7": (lambda: narrow(models.create("vgg7")), (4, 3, 32, 32)),
    "resnet18": (lambda: narrow(ResNet(BasicBlock, (2, 1, 1, 1), num_classes=10)), (4, 3, 48, 48)),
    "resnet50": (lambda: narrow(ResNet(Bottleneck, (2, 1, 1, 1), num_classes=10)), (8, 3, 64, 64)),
    "mobilenetv2": (short_mobilenetv2, (8, 3, 64, 64)),
    "resnet8": (lambda: CifarResNet(8), (4, 3, 16, 16)),
}


def make(name: str) -> tuple[nn.Module, Any]:
    """A network with weights under which its activations are of ordinary size, and inputs for it."""
    torch.manual_seed(0)
    if name in ZOO:
        create, shape = ZOO[name]
        return create(), torch.randn(shape)
    if name in TRANSFORMERS:
        model, inputs = transformer(name)
        model = short_transformers_mobilenet(model) if name == "mobilenet" else model
        # Several images: batch norm in training magnifies rounding where a channel has few values.
        several = {key: torch.cat([x, x.flip(-1), x.flip(-2), -x, x**2, x.abs()]) for key, x in inputs.items()}
        return randomize(model), several if "pixel_values" in inputs else inputs
    create, inputs = OWN[name]
    fresh = tuple(torch.randn_like(i) for i in inputs) if isinstance(inputs, tuple) else torch.randn_like(inputs)
    return randomize(create()), fresh


def output_of(model: nn.Module, inputs: Any) -> Tensor:
    if isinstance(inputs, dict):
        output = model(**inputs)
        return output.logits if hasattr(output, "logits") else output[0]
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def loss_of(model: nn.Module, inputs: Any) -> Tensor:
    return (output_of(model, inputs).float() ** 2).mean()


class Watch(TorchDispatchMode):
    """Collects the names of all operations that run, and those that meet a tensor on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.on_cpu: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        result = function(*args, **(kwargs or {}))
        self.names.add(name)
        if any(isinstance(t, Tensor) and t.device.type == "cpu" for t in tree_leaves((args, kwargs, result))):
            self.on_cpu.add(name)
        return result
