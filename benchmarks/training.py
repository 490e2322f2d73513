"""Whole training steps: ours against the best float step, and against other ways to train a quantized network."""

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import bayesbits as bb
from bayesbits.functional import compiled, recursive_gated_quantize
from bayesbits.methods import METHODS
from bayesbits.training.config import OptimizerConfig, SearchConfig
from bayesbits.training.optimizers import Optimizers, make_optimizers
from bayesbits.training.step import TrainingStep
from bayesbits.utils.cuda_graph import WARM_UP
from bayesbits.zoo import models
from benchmarks.measure import seconds

Row = dict[str, Any]
Step = Callable[[], object]

EVERYONE = ("float", "bayesbits", "fake-quantization", "recursion", "recursion, checkpointed")
OF_SMALL_TENSORS = ("float", "bayesbits", "bayesbits, uncompiled")
"""For a network of many small tensors, on which every operation of torch takes longer than its arithmetic."""
IMAGENET_IMAGES, PAPER_EPOCHS = 1_281_167, 40


def training(smoke: bool) -> list[Row]:
    """A training step in bfloat16, channels last, compiled and recorded as a CUDA graph where there is a GPU."""
    if not torch.cuda.is_available():
        sizes = [("lenet5", 2, 28)] if smoke else [("lenet5", 128, 28), ("vgg7", 16, 32)]
        small = [("lenet5", 2, 28)] if smoke else [("mobilenetv2", 2, 64)]
        rows = [row for size in sizes for row in compare(*size, EVERYONE)]
        return rows + [row for size in small for row in compare(*size, OF_SMALL_TENSORS)]
    if smoke:
        return compare("vgg7", 2, 32, EVERYONE)
    rows = [*compare("vgg7", 128, 32, EVERYONE), *compare("vgg7", 1024, 32, EVERYONE)]
    return [*rows, *compare("resnet18", 384, 224, ("float", "bayesbits", "fake-quantization"))]


def scaling(smoke: bool) -> list[Row]:
    """How the cost of a step grows with depth, width and batch, beside the float network's."""
    if smoke:
        sizes = [("resnet20", 2, 32)]
    elif torch.cuda.is_available():
        sizes = [("resnet20", 128, 32), ("resnet56", 128, 32)]
        sizes += [(name, batch, 224) for name in ("resnet18", "resnet50") for batch in (64, 256)]
    else:
        sizes = [
            ("resnet20", 16, 32),
            ("resnet20", 64, 32),
            ("resnet56", 16, 32),
            ("resnet18", 8, 64),
            ("resnet50", 8, 64),
        ]
    return [row for size in sizes for row in compare(*size, ("float", "bayesbits"))]


def compare(model: str, batch: int, pixels: int, contenders: tuple[str, ...]) -> list[Row]:
    """Time and memory of one step of each contender, as ratios to the first."""
    with compiled.expecting(sys.maxsize):  # as in a training of many steps
        return _compare(model, batch, pixels, contenders)


def _compare(model: str, batch: int, pixels: int, contenders: tuple[str, ...]) -> list[Row]:
    rows: list[Row] = []
    for name in contenders:
        torch.manual_seed(0)
        before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        step = make_step(name, model, batch, pixels)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for _ in range(WARM_UP if device == "cuda" else 1):
            step()  # compiles
        peak = peak_of(step) - before if device == "cuda" else 0
        time = seconds(step, device, 30 if device == "cuda" else 5)
        row: Row = {
            "network": model,
            "batch": batch,
            "what": name,
            "ms": round(time * 1e3, 3),
            "time / float": round(time * 1e3 / rows[0]["ms"], 2) if rows else 1.0,
        }
        if device == "cuda":  # on the CPU a process keeps what it was given, and the next contender finds it there
            reserved = torch.cuda.memory_reserved() - before
            for what, amount in (("memory", peak), ("reserved", reserved)):
                row[f"{what} MB"] = round(amount / 1e6, 1)
                row[f"{what} / float"] = round(amount / 1e6 / rows[0][f"{what} MB"], 2) if rows else 1.0
        if pixels == 224:
            row["hours of the paper's ImageNet"] = hours_of_imagenet(time, batch)
        rows.append(row)
        del step
        torch._dynamo.reset()
        gc.collect()  # otherwise the next contender's memory is counted against what is left of this one
        if device == "cuda":
            torch._C._cuda_clearCublasWorkspaces()  # which the next contender allocates for itself, like the first one
            torch.cuda.empty_cache()
    return rows


def peak_of(step: Step) -> int:
    """The most memory that tensors hold at once while a step runs; one that is recorded is recorded in this call."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def hours_of_imagenet(seconds_a_step: float, batch: int) -> float:
    """How long the paper's training on ImageNet would take at this rate, if the data keep up."""
    return round(IMAGENET_IMAGES / batch * PAPER_EPOCHS * seconds_a_step / 3600, 1)


def make_step(name: str, model_name: str, batch: int, pixels: int, *, compile_on_cpu: bool = False) -> Step:
    """A step of one contender on random images; compiled where there is a GPU, or where that is asked for."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = models.create(model_name).to(device)
    channels = 1 if model_name == "lenet5" else 3
    images = torch.randn(batch, channels, pixels, pixels, device=device)
    labels = torch.randint(10, (batch,), device=device)
    fast = not name.startswith("recursion")  # which is measured as it was published
    on_gpu = device == "cuda"
    config = SearchConfig(
        precision="bfloat16" if on_gpu else "float32", channels_last=on_gpu,
        compile=(on_gpu or compile_on_cpu) and fast, cuda_graph=on_gpu and fast,
    )  # fmt: skip
    if name == "float":
        attachment = SimpleNamespace(method=METHODS["bayesian_bits"])
        compressor: Any = SimpleNamespace(model=model, attachment=attachment)
        optimizers = Optimizers({"weights": (list(model.parameters()), OptimizerConfig())})
        step = TrainingStep(model, compressor, F.cross_entropy, optimizers, config, mu=0.0)
        return lambda: step(images, labels)
    method = "lsq" if name == "fake-quantization" else "bayesian_bits"
    compressor = bb.attach(model, images[:1], replace(bb.Spec.paper(), method=method))
    compressor.calibrate([images[:32]])
    step = TrainingStep(model, compressor, F.cross_entropy, make_optimizers(compressor, config), config, mu=0.01)
    if name == "bayesbits, uncompiled":
        return lambda: _uncompiled(step, images, labels)
    if fast:
        return lambda: step(images, labels)

    def recursive() -> None:
        with patch("bayesbits.nn.gated_quantizer.gated_quantize", _recursion(checkpointed="checkpoint" in name)):
            step(images, labels)

    return recursive


def _uncompiled(step: TrainingStep, images: Tensor, labels: Tensor) -> Tensor:
    with compiled.never_compiled():
        return step(images, labels)


def _recursion(*, checkpointed: bool) -> Callable[..., Tensor]:
    def plain(
        x: Tensor, beta: Tensor, gates: Tensor, *,
        signed: bool, bits: tuple[int, ...], alpha: Tensor | None = None, dtype: torch.dtype | None = None,
    ) -> Tensor:  # fmt: skip
        assert alpha is None, "the paper's ranges are symmetric or unsigned"
        beta = beta.reshape(-1, *[1] * (x.dim() - 1)) if beta.dim() else beta
        return recursive_gated_quantize(x, beta, gates, signed=signed, bits=bits).to(dtype or x.dtype)

    def repeated(x: Tensor, beta: Tensor, gates: Tensor, **options: Any) -> Tensor:
        result: Tensor = checkpoint(plain, x, beta, gates, use_reentrant=False, **options)
        return result

    return repeated if checkpointed else plain
