"""Networks that people bring, at 224 pixels and 8 bits, in onnxruntime: milliseconds beside those of float."""

import importlib
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.latency import Latency, measure_latencies
from bayesbits.deploy.onnx.runtime import operation_counts
from bayesbits.zoo.models import LeNet5, resnet18, resnet50
from benchmarks.quantizer import Row

SHOWN = ("QLinearConv", "ConvInteger", "Conv", "QGemm", "MatMulIntegerToFloat", "MatMulInteger", "Gemm")
"""The kernels of layers that a row counts."""


class Logits(nn.Module):
    """An image classifier of `transformers` that returns its logits alone."""

    def __init__(self, kind: str, **options: object) -> None:
        super().__init__()
        library = importlib.import_module("transformers")
        configuration = getattr(library, f"{kind}Config")(**options)
        self.model = getattr(library, f"{kind}ForImageClassification")(configuration)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


def pytorchcv(file: str, name: str) -> nn.Module:
    """A network of `pytorchcv`."""
    network: nn.Module = getattr(importlib.import_module(f"pytorchcv.models.{file}"), name)()
    return network


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "EfficientNet-B0": lambda: Logits("EfficientNet", width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280),
    "MobileNetV3-small": lambda: pytorchcv("mobilenetv3", "mobilenetv3_small_w1"),
    "MobileNetV3-large": lambda: pytorchcv("mobilenetv3", "mobilenetv3_large_w1"),
    "GhostNet": lambda: pytorchcv("ghostnet", "ghostnet"),
    "ConvNeXt-T": lambda: Logits("ConvNext"),
    "DenseNet-121": lambda: pytorchcv("densenet", "densenet121"),
    "ShuffleNetV2": lambda: pytorchcv("shufflenetv2", "shufflenetv2_w1"),
    "RegNet-Y": lambda: Logits("RegNet"),
    "ResNeXt-50 (32x4d)": lambda: pytorchcv("resnext", "resnext50_32x4d"),
    "MobileNetV2": lambda: Logits("MobileNetV2"),
    "ResNet-18": resnet18,
    "ResNet-50": resnet50,
}
SMALL: dict[str, Callable[[], nn.Module]] = {"LeNet-5": LeNet5}


def networks(smoke: bool) -> list[Row]:
    """Networks of three libraries with random weights at 8 bits, batch 1, one image of 224 pixels.

    "speed" is the time of float over that of the integer file, in the same run. The kernels are those that the runtime
    chose for the layers. A network is left out where its library cannot be imported.
    """
    rows = []
    for name, make in (SMALL if smoke else NETWORKS).items():
        try:
            model = make()
        except ImportError as error:
            rows.append({"network": name, "left out": str(error)})
            continue
        example = torch.randn(1, 1, 28, 28) if smoke else torch.randn(1, 3, 224, 224)
        set_statistics(model, example)
        rows += _network(name, model, example, rounds=1 if smoke else 40)
    return rows


def set_statistics(model: nn.Module, example: Tensor) -> None:
    """Give a network weights and batch-norm statistics with which its activations neither vanish nor grow."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(4, *example.shape[1:]))
    model.eval()


def _network(name: str, model: nn.Module, example: Tensor, rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        files = {file: Path(folder) / f"{file}.onnx" for file in ("float", "integer")}
        export_float_onnx(model, example, files["float"])
        compressor = bb.attach(model, example, bb.Spec.for_backend("onnxruntime"))
        compressor.calibrate([example])
        compressor.fix(bb.Plan.uniform(compressor.topology, residual_bits=8))
        small = bb.deploy(compressor)
        bb.export_onnx(small, example, files["integer"])
        latencies = measure_latencies(files, small, example, threads=(1, 2), batches=(1,), rounds=rounds)
        return _rows(name, latencies, operation_counts(files["integer"]))


def _rows(network: str, latencies: list[Latency], operations: Mapping[str, int]) -> list[Row]:
    milliseconds = {(one.threads, one.name): one.seconds * 1e3 for one in latencies}
    kernels = Counter({kind: operations[kind] for kind in SHOWN if operations.get(kind)})
    return [
        {
            "network": network,
            "threads": threads,
            "float ms": round(milliseconds[threads, "float"], 2),
            "integer ms": round(milliseconds[threads, "integer"], 2),
            "speed": round(milliseconds[threads, "float"] / milliseconds[threads, "integer"], 2),
            "kernels": ", ".join(f"{count} {kind}" for kind, count in kernels.items()),
        }
        for threads in dict.fromkeys(one.threads for one in latencies)
    ]
