"""The penalties: by hand, against sampled gates, torch's own KL and the counted cost, and inside of a training step."""

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

from bayesbits.cost import CostModel
from bayesbits.functional.gates import probability_on, sample_hard_concrete
from bayesbits.graph.trace import trace
from bayesbits.nn import ChannelGate, GatedQuantizer
from bayesbits.objective import _MIDDLE_LOGIT, KINDS, Objective
from bayesbits.plan import Plan
from bayesbits.topology import Topology
from tests.graph.networks import OWN, traced
from tests.networks import zoo

FIRST, SECOND = 4 * 3, 2 * 4  # the MACs of the two layers
EVERYTHING = ("mobilenetv2", "cifar_resnet8", "inverted", *OWN)


@cache
def two_layers() -> Topology:
    """Linear 3 -> 4 -> 2, whose tensors are 0.weight, 0.input, 2.weight and 2.input."""
    return trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(1, 3))


def topology(name: str) -> Topology:
    return traced(name)[2] if name in OWN else zoo(name)


class Gated(nn.Module):
    """Quantizers for all tensors of a network and gates for the channels of its layers, with random logits."""

    def __init__(
        self, network: Topology, bits: tuple[int, ...] = (2, 4, 8), prune: bool = True, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        tensors = {name: True for name in network.weight_tensors} | {name: False for name in network.operand_tensors}
        tensors |= {activation.name: False for activation in network.activations}
        self.network = network
        self.quantizers = {name: GatedQuantizer(signed=signed, bits=bits) for name, signed in tensors.items()}
        self.channels = {
            layer.name: ChannelGate(len(layer.out_channels))
            for layer in network.layers
            if prune and not layer.depthwise and layer.name not in network.output_layers
        }
        self.owners = nn.ModuleList([*self.quantizers.values(), *self.channels.values()]).to(dtype)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for logits in self.logits():
                logits.copy_(torch.randn(logits.shape, generator=generator) * 2)

    def logits(self) -> list[Tensor]:
        return [owner.gates.logits for owner in self.owners if owner.gates.logits.numel()]

    def objective(self, kind: str = "paper", **options: Any) -> Objective:
        return Objective(self.network, self.quantizers, self.channels, kind, **options)

    def on(self, name: str) -> Any:
        """P(z > 0) of a quantizer's or of a layer's gates, as numbers."""
        owner = {**self.quantizers, **self.channels}[name]
        return owner.gates.probability_on().tolist()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def close(actual: Tensor, expected: float) -> bool:
    assert actual.shape == ()
    return actual.item() == pytest.approx(expected, rel=1e-9)


def test_the_papers_penalty_by_hand() -> None:
    gated = Gated(two_layers())
    gated.quantizers["0.input"].fix(8)
    (w4, w8), channels = gated.on("0.weight"), mean(gated.on("0"))
    (v4, v8), (a4, a8) = gated.on("2.weight"), gated.on("2.input")
    first = channels * (2 + 4 * w4 + 8 * w4 * w8)
    second = (2 + 4 * v4 + 8 * v4 * v8 + 2 + 4 * a4 + 8 * a4 * a8) * SECOND / FIRST
    assert close(gated.objective()(), first + second)


def test_the_expected_bit_operations_by_hand() -> None:
    gated = Gated(two_layers())
    gated.quantizers["0.input"].fix(8)
    del gated.quantizers["2.weight"]
    (w4, w8), channels, (a4, a8) = gated.on("0.weight"), mean(gated.on("0")), gated.on("2.input")
    first = FIRST * channels * (2 + 2 * w4 + 4 * w4 * w8) * 8
    second = SECOND * channels * 32 * (2 + 2 * a4 + 4 * a4 * a8)
    assert close(gated.objective("expected_bops")(), 100 * (first + second) / ((FIRST + SECOND) * 1024))


def kl(on: float, exponent: float) -> float:
    posterior, prior = (Bernoulli(torch.tensor(value, dtype=torch.float64)) for value in (on, math.exp(-exponent)))
    return kl_divergence(posterior, prior).item()


@pytest.mark.parametrize(("examples", "strength"), [(1, 0.01), (3, 0.5), (10, 1.0)])
def test_the_variational_penalty_is_made_of_kl_divergences(examples: int, strength: float) -> None:
    gated = Gated(two_layers())
    gated.quantizers["0.input"].fix(8)
    scale = examples * strength

    def higher(name: str, exponent: float) -> float:
        on4, on8 = gated.on(name)
        return kl(on4, 4 * exponent) + on4 * kl(on8, 8 * exponent)

    ratio = scale * SECOND / FIRST
    channels = gated.on("0")
    expected = mean([kl(on, 2 * scale) for on in channels]) + mean(channels) * higher("0.weight", scale)
    expected += 2 * ratio + higher("2.weight", ratio) + 2 * ratio + higher("2.input", ratio)
    assert close(gated.objective("variational", examples=examples, strength=strength)(), expected / scale)


def test_the_variational_penalty_goes_to_the_papers_with_one_over_the_number_of_examples() -> None:
    gated = Gated(zoo("cifar_resnet8"))
    paper = gated.objective()()
    errors = [(gated.objective("variational", examples=10**power)() - paper).abs().item() for power in (4, 5, 6, 7)]
    assert errors[0] > 1e-5
    for larger, smaller in zip(errors, errors[1:], strict=False):
        assert smaller == pytest.approx(larger / 10, rel=1e-2)
    halved = gated.objective("variational", examples=10**4, strength=0.5)() - paper
    assert halved.abs().item() == pytest.approx(2 * errors[0], rel=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_numbers(kind: str) -> None:
    gated = Gated(topology("Residual" if "Residual" in OWN else "residual"), bits=(2, 3, 8, 16))
    objective = gated.objective(kind, examples=3)
    operands = [gated.quantizers[name].gates.logits for name in gated.network.operand_tensors]
    logits = [value for value in gated.logits() if kind != "expected_bops" or all(value is not o for o in operands)]
    assert torch.autograd.gradcheck(lambda *_: objective(), logits)
    gradients = torch.autograd.grad(objective(), logits)
    assert all((gradient != 0).all() for gradient in gradients)


@pytest.mark.parametrize("logit", [-300.0, -60.0, 60.0, 300.0])
def test_gates_that_are_certain_leave_penalty_and_gradient_finite(logit: float) -> None:
    for examples in (1, 10**9):
        gated = Gated(two_layers(), dtype=torch.float32)
        for values in gated.logits():
            nn.init.constant_(values, logit)
        penalty = gated.objective("variational", examples=examples, strength=1e-3)()
        penalty.backward()
        assert penalty.isfinite()
        assert all(values.grad is not None and values.grad.isfinite().all() for values in gated.logits())


def test_a_decided_gate_has_the_entropy_of_the_shared_probability() -> None:
    logits = torch.linspace(-5, 5, 11, dtype=torch.float64)
    torch.testing.assert_close(torch.sigmoid(logits - _MIDDLE_LOGIT), probability_on(logits))


class Shared(nn.Module):
    """One tensor that two layers read, and a weight that two others share."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.once, self.wide = nn.Linear(4, 4), nn.Linear(4, 16)
        self.right.weight = self.left.weight
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = self.right(self.left(x).relu().repeat(3, 1)).relu()
        return self.head((self.once(x).relu() @ self.wide.weight.T).relu()) if False else self.head(self.wide(x).relu())


def only(gated: Gated, name: str) -> float:
    """The paper's penalty of one tensor, with the others fixed, and no channels that learn but those of its layers."""
    for other, quantizer in gated.quantizers.items():
        quantizer.learn() if other == name else quantizer.fix(8)
    layers = gated.network.weight_tensors.get(name, ())
    for layer, channels in gated.channels.items():
        channels.learn() if layer in layers else channels.fix()
    return gated.objective()().item()


def test_an_activation_pays_for_all_layers_that_read_it() -> None:
    gated = Gated(topology("concatenation" if "concatenation" in OWN else "Concatenation"))
    macs = {layer.name: layer.macs for layer in gated.network.layers}
    on4, on8 = gated.on("left.input")
    share = (macs["left"] + macs["right"]) / max(macs.values())
    assert share > 1
    assert only(gated, "left.input") == pytest.approx(share * (2 + 4 * on4 + 8 * on4 * on8), rel=1e-9)
