"""Simulation, deployed network and onnxruntime on many inputs: what is equal, and by how much the rest is off."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import bayesbits as bb
from bayesbits.zoo.models import VGG7, CifarResNet, LeNet5, MobileNetV2, resnet18
from benchmarks.deployed import random_plan
from benchmarks.quantizer import Row

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (LeNet5, (1, 28, 28)),
    "vgg7": (VGG7, (3, 32, 32)),
    "cifar_resnet20": (lambda: CifarResNet(20), (3, 32, 32)),
    "mobilenetv2": (lambda: MobileNetV2(num_classes=10), (3, 64, 64)),
    "resnet18": (lambda: resnet18(num_classes=10), (3, 64, 64)),
}


def equality(smoke: bool) -> list[Row]:
    """Random plans of 2, 4 and 8 bits with 30% of channels gone; inputs that leave every range at both ends.

    `bb.verify` raises where anything differs that has to be equal: a table is a proof. What lies behind float
    operations may round to another code; "and what follows" counts that and everything behind it in the whole file.
    """
    if smoke:
        return [_network("lenet5", 8, "compact")]
    return [_network(name, 1000, form) for name in NETWORKS for form in ("fast", "compact")]


def _network(name: str, count: int, form: str) -> Row:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = _with_biases(make()).eval()
    compressor = bb.attach(model, torch.zeros(1, *shape), bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([torch.randn(32, *shape)])
    compressor.fix(random_plan(compressor.topology, (2, 4, 8), 0.3))
    small = bb.deploy(compressor)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        bb.export_onnx(small, torch.zeros(1, *shape), path, form)
        found = bb.verify(compressor, small, path, 2 * torch.randn(count, *shape))
    exact = [place for place in found.runtime_tensors if place.exact]
    close = [place for place in found.runtime_tensors if not place.exact]
    return {
        "network": name,
        "file": form,
        "inputs": count,
        "weights": found.stored.weights,
        "values": sum(place.values for place in exact),
        "differing": sum(place.differing for place in exact),
        "behind float": sum(place.values for place in close),
        "differing there": sum(place.differing for place in close),
        "and what follows": sum(place.differing_end_to_end for place in found.runtime_tensors),
        "integer kernels": f"{len(found.integer_layers)} of {len(found.kernels)}",
        "codes beside a tie": f"{found.simulated.ties} of {found.simulated.codes}",
        "simulated codes off": f"{found.simulated.differing_end_to_end} of {found.simulated.codes}",
        "decisions flipped": sum(output.predictions_end_to_end.flipped for output in found.simulated.outputs),
        "machine": f"{found.machine.cpu}, {found.machine.runtime}",
    }


def _with_biases(model: nn.Module) -> nn.Module:
    """Biases and shifts that are not zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.3, 0.3)
    return model
