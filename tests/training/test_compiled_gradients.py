"""A compiled step has the gradients of the eager one, though its forward pass changes buffers that it has read.

Batch norms change the statistics that weights are folded with, and every pass moves the counter of the gates' noise on.
A compiler that computes from these again in its backward pass would use what they have become.
"""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesbits as bb
from bayesbits.functional import operation
from bayesbits.training.config import SearchConfig
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.step import TrainingStep

Network = Callable[[], tuple[nn.Module, torch.Tensor]]


def with_batch_norms() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return model, torch.randn(16, 3, 8, 8)


def without() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), torch.randn(512, 64)


@pytest.mark.parametrize(
    ("network", "seen"),
    [(with_batch_norms, "one operation"), (with_batch_norms, "plain operations"), (without, "one operation")],
)
def test_a_compiled_step_has_the_gradients_of_the_eager_one(network, seen, monkeypatch):
    if seen == "one operation":  # as a compiler for the GPU sees it
        monkeypatch.setattr(operation, "has_kernel", lambda x, rows: True)
    eager, compiled = both(network, torch.device("cpu"), torch.float64, bits=(4, 8))  # each further one is compiled too
    for name, gradient in eager.items():
        torch.testing.assert_close(compiled[name], gradient, rtol=1e-5, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def both(
    network: Network, device: torch.device, dtype: torch.dtype, bits: tuple[int, ...] = (2, 4, 8, 16, 32)
) -> tuple[dict[str, torch.Tensor], ...]:
    """The gradients of an eager and of a compiled step."""
    torch.manual_seed(0)
    model, x = network()
    model, x = model.to(device, dtype), x.to(device, dtype)
    labels = torch.randint(10, (len(x),), device=device)
    compressor = bb.attach(model, x[:1], bb.Spec(bits=bits))
    compressor.calibrate([x])
    for quantizer in compressor.attachment.quantizers.values():
        nn.init.constant_(quantizer.gates.logits, 0.3)  # neither open nor closed: all noise matters
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(2 * x)  # the coming pass will change the statistics by much
    eager, compiled = (gradients(copy.deepcopy(compressor), x, labels, compile=flag) for flag in (False, True))
    assert eager.keys() == compiled.keys()
    return eager, compiled


def gradients(compressor: bb.Compressor, x: torch.Tensor, labels: torch.Tensor, *, compile: bool):  # noqa: A002
    config = SearchConfig(compile=compile)
    model, optimizers = compressor.model, make_optimizers(compressor, config)
    step = TrainingStep(model, compressor, F.cross_entropy, optimizers, config, mu=0.1)
    step._differentiate_compiled(x, labels)
    assert step.may_compile == compile
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
