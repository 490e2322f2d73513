"""Networks that the tests of deployment share, compressed to mixed widths and deployed."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

import bayesbits as bb
from bayesbits.zoo import models
from tests.deploy.comparison import mixed_plan
from tests.graph.networks import OWN, randomize, transformer

SPEC = bb.Spec(bits=(2, 4, 8))

ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lambda: models.create("lenet5"), (3, 1, 28, 28)),
    "vgg7": (lambda: models.create("vgg7"), (2, 3, 32, 32)),
    "resnet18": (lambda: models.create("resnet18", num_classes=10), (2, 3, 32, 32)),
    "resnet20": (lambda: models.create("resnet20"), (2, 3, 32, 32)),
    "mobilenetv2": (lambda: models.create("mobilenetv2", num_classes=10, width=0.25), (2, 3, 32, 32)),
}
IMAGES = (2, 3, 8, 8)
TRANSFORMERS = ("vit", "convnext", "bert", "llama")


def make(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    if name in ZOO:
        create, shape = ZOO[name]
        return randomize(create()), torch.randn(shape)
    if name in TRANSFORMERS:
        model, inputs = transformer(name)
        return randomize(model), {
            key: torch.cat([x, x.flip(-1)]) if x.is_floating_point() else x for key, x in inputs.items()
        }
    create, inputs = OWN[name]
    fresh = tuple(torch.randn_like(x) for x in inputs) if isinstance(inputs, tuple) else torch.randn_like(inputs)
    return randomize(create()), fresh


def compress(model: nn.Module, inputs: Any, spec: bb.Spec = SPEC, **options: Any) -> bb.Compressor:
    """A compressor with ranges half as wide as the data, so that both ends saturate, and a plan of mixed widths."""
    compressor = bb.attach(model.eval(), inputs, spec)
    compressor.calibrate([inputs])
    for name, quantizer in compressor.attachment.quantizers.items():
        if name not in compressor.topology.weight_tensors:
            quantizer.set_range(quantizer.beta.detach() * 0.5)
    compressor.fix(mixed_plan(compressor.topology, operands=spec.residual_bits is not None, **options))
    return compressor


@cache
def deployed(name: str) -> tuple[bb.Compressor, bb.DeployedNetwork, Any]:
    """A compressor, its deployed network and inputs; shared by tests that change none of them."""
    model, inputs = make(name)
    compressor = compress(model, inputs)
    return compressor, bb.deploy(compressor), inputs


def chain(*layers: nn.Module) -> nn.Sequential:
    """Layers between a convolution of images and a linear layer."""
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), *layers, nn.Flatten(), nn.LazyLinear(3))
