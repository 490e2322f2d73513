"""The penalties: by hand, against sampled gates, torch's own KL and the counted cost, and inside of a training step."""

import copy
import math
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

from bayesbits.compression.penalties import PENALTIES, make_penalty
from bayesbits.compression.penalty_base import Penalty
from bayesbits.cost import CostModel
from bayesbits.functional.gates import HALF_LOGIT, probability_on, sample_hard_concrete
from bayesbits.graph.trace import trace
from bayesbits.nn import ChannelGate, GatedQuantizer
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from tests.graph.networks import OWN, ROWS, Tied, traced
from tests.networks import random_plan, traced_once, zoo

FIRST, SECOND = 4 * 3, 2 * 4  # the MACs of the two layers


@cache
def two_layers() -> Topology:
    """Linear 3 -> 4 -> 2, whose tensors are 0.weight, 0.input, 2.weight and 2.input."""
    return trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(1, 3))


def topology(name: str) -> Topology:
    return traced(name)[2] if name in OWN else zoo(name)


class Gated(nn.Module):
    """Quantizers for all tensors of a network and gates for the channels of its layers, with random logits."""

    def __init__(
        self,
        network: Topology,
        bits: tuple[int, ...] = (2, 4, 8),
        prune: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        unsigned = [*network.operand_tensors, *(activation.name for activation in network.activations)]
        tensors = dict.fromkeys(network.weight_tensors, True) | dict.fromkeys(unsigned, False)
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

    def penalty(self, kind: str = "paper", **options: Any) -> Penalty:
        return make_penalty(self.network, self.quantizers, self.channels, kind, **options)

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
    assert close(gated.penalty()(), first + second)


def test_the_expected_bit_operations_by_hand() -> None:
    gated = Gated(two_layers())
    gated.quantizers["0.input"].fix(8)
    del gated.quantizers["2.weight"]
    (w4, w8), channels, (a4, a8) = gated.on("0.weight"), mean(gated.on("0")), gated.on("2.input")
    first = FIRST * channels * (2 + 2 * w4 + 4 * w4 * w8) * 8
    second = SECOND * channels * 32 * (2 + 2 * a4 + 4 * a4 * a8)
    assert close(gated.penalty("expected_bops")(), 100 * (first + second) / ((FIRST + SECOND) * 1024))


def kl(on: float, exponent: float) -> float:
    posterior, prior = (Bernoulli(torch.tensor(value, dtype=torch.float64)) for value in (on, math.exp(-exponent)))
    return kl_divergence(posterior, prior).item()


@pytest.mark.parametrize("examples", [1, 2, 4])
def test_the_variational_penalty_is_made_of_kl_divergences(examples: int) -> None:
    gated = Gated(two_layers())
    gated.quantizers["0.input"].fix(8)

    def higher(name: str, exponent: float) -> float:
        on4, on8 = gated.on(name)
        return kl(on4, 4 * exponent) + on4 * kl(on8, 8 * exponent)

    ratio = examples * SECOND / FIRST
    channels = gated.on("0")
    expected = mean([kl(on, 2 * examples) for on in channels]) + mean(channels) * higher("0.weight", examples)
    expected += 2 * ratio + higher("2.weight", ratio) + 2 * ratio + higher("2.input", ratio)
    assert close(gated.penalty("variational", num_examples=examples)(), expected / examples)


def test_the_variational_penalty_goes_to_the_papers_with_one_over_the_number_of_examples() -> None:
    gated = Gated(zoo("cifar_resnet8"))
    paper = gated.penalty()()
    errors = [(gated.penalty("variational", num_examples=10**power)() - paper).abs().item() for power in (4, 5, 6, 7)]
    assert errors[0] > 1e-5
    for larger, smaller in pairwise(errors):
        assert smaller == pytest.approx(larger / 10, rel=1e-2)


@pytest.mark.parametrize("kind", PENALTIES)
def test_gradients_are_those_of_the_numbers(kind: str) -> None:
    gated = Gated(topology("residual"), bits=(2, 3, 8, 16))
    penalty = gated.penalty(kind, num_examples=3)
    operands = [gated.quantizers[name].gates.logits for name in gated.network.operand_tensors]
    logits = [value for value in gated.logits() if kind != "expected_bops" or all(value is not o for o in operands)]
    assert torch.autograd.gradcheck(lambda *_: penalty(), logits, fast_mode=True)
    gradients = torch.autograd.grad(penalty(), logits)
    assert all((gradient != 0).all() for gradient in gradients)


@pytest.mark.parametrize("logit", [-300.0, -60.0, 60.0, 300.0])
def test_gates_that_are_certain_leave_penalty_and_gradient_finite(logit: float) -> None:
    for examples in (1, 10**9):
        gated = Gated(two_layers(), dtype=torch.float32)
        for values in gated.logits():
            nn.init.constant_(values, logit)
        penalty = gated.penalty("variational", num_examples=examples)()
        penalty.backward()
        assert penalty.isfinite()
        assert all(values.grad is not None and values.grad.isfinite().all() for values in gated.logits())


def test_the_entropy_is_that_of_the_probability_that_all_kinds_of_gates_share() -> None:
    logits = torch.linspace(-5, 5, 11, dtype=torch.float64)
    torch.testing.assert_close(torch.sigmoid(logits - HALF_LOGIT), probability_on(logits))


def only(gated: Gated, name: str) -> float:
    """The paper's penalty of one tensor: all others are fixed, and the channels of all layers but its own."""
    for other, quantizer in gated.quantizers.items():
        quantizer.learn() if other == name else quantizer.fix(8)
    layers = gated.network.weight_tensors.get(name, ())
    for layer, channels in gated.channels.items():
        channels.learn() if layer in layers else channels.fix()
    return gated.penalty()().item()


def charged(gated: Gated, name: str, first: float = 1.0) -> float:
    """What the widths of a tensor cost for each MAC of the largest layer."""
    on4, on8 = gated.on(name)
    return first * (2 + 4 * on4 + 8 * on4 * on8) / max(layer.macs for layer in gated.network.layers)


def test_an_activation_pays_for_all_layers_that_read_it() -> None:
    gated = Gated(topology("concatenation"))
    macs = gated.network.layer("left").macs + gated.network.layer("right").macs
    assert macs > max(layer.macs for layer in gated.network.layers)
    assert only(gated, "left.input") == pytest.approx(macs * charged(gated, "left.input"), rel=1e-9)


def test_a_tied_weight_pays_for_all_of_its_layers_with_the_channels_of_each() -> None:
    gated = Gated(traced_once(Tied, ROWS))
    first, second = (gated.network.layer(name).macs for name in ("first", "second"))
    both = (mean(gated.on("first")) * first + mean(gated.on("second")) * second) / (first + second)
    expected = (first + second) * charged(gated, "first.weight", both)
    assert only(gated, "first.weight") == pytest.approx(expected, rel=1e-9)
    del gated.channels["second"]
    half = (mean(gated.on("first")) * first + second) / (first + second)
    assert only(gated, "first.weight") == pytest.approx(expected / both * half, rel=1e-9)


def test_a_residual_operand_pays_for_the_layer_that_made_it_or_for_a_mean_one() -> None:
    gated = Gated(topology("residual"))
    assert "outer_norm.output" in gated.quantizers
    expected = gated.network.layer("outer").macs * charged(gated, "outer_norm.output")
    assert only(gated, "outer_norm.output") == pytest.approx(expected, rel=1e-9)
    gated = Gated(zoo("cifar_resnet8"))
    names = {layer.name for layer in gated.network.layers} | {layer.norm for layer in gated.network.layers}
    unknown = next(name for name, module in gated.network.operand_tensors.items() if module not in names)
    expected = mean([layer.macs for layer in gated.network.layers]) * charged(gated, unknown)
    assert only(gated, unknown) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("state", "price"), [("missing", 62), ("off", 62), (32, 62), (8, 14), (4, 6), (2, 2), (0, 0)])
def test_with_widths_decided_it_is_the_expected_number_of_channels_that_stay(state: Any, price: int) -> None:
    gated = Gated(two_layers(), bits=(2, 4, 8, 16, 32))
    for name, quantizer in list(gated.quantizers.items()):
        quantizer.turn_off() if state == "off" else quantizer.fix(state if isinstance(state, int) else None)
        if state == "missing":
            del gated.quantizers[name]
    penalty = gated.penalty()()
    assert close(penalty, price * mean(gated.on("0")))
    uniform = torch.rand(200_000, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    samples = sample_hard_concrete(gated.channels["0"].gates.logits.detach(), uniform)
    assert penalty.item() == pytest.approx(price * (samples != 0).double().mean().item(), rel=5e-3)
    if price:
        penalty.backward()
        assert (gated.channels["0"].gates.logits.grad > 0).all()
        assert all(quantizer.gates.logits.grad is None for quantizer in gated.quantizers.values())


@pytest.mark.parametrize("kind", PENALTIES)
def test_what_is_decided_multiplies_what_is_not_and_costs_nothing_itself(kind: str) -> None:
    gated = Gated(two_layers())
    gated.channels["0"].fix([True, False, True, True])
    gated.quantizers["2.weight"].turn_off()
    penalty = gated.penalty(kind, num_examples=10**12)
    (w4, w8), (x4, x8), (a4, a8) = (gated.on(name) for name in ("0.weight", "0.input", "2.input"))
    if kind == "expected_bops":
        first = FIRST * 0.75 * (2 + 2 * w4 + 4 * w4 * w8) * (2 + 2 * x4 + 4 * x4 * x8)
        second = SECOND * 0.75 * 32 * (2 + 2 * a4 + 4 * a4 * a8)
        expected = 100 * (first + second) / ((FIRST + SECOND) * 1024)
    else:
        expected = 0.75 * (2 + 4 * w4 + 8 * w4 * w8) + 2 + 4 * x4 + 8 * x4 * x8
        expected += (2 + 4 * a4 + 8 * a4 * a8) * SECOND / FIRST
    assert close(penalty(), expected)
    for quantizer in gated.quantizers.values():
        quantizer.fix(8)
    assert close(penalty(), 6.25 * 0.75 if kind == "expected_bops" else 0.0)
    assert not penalty().requires_grad


def test_a_first_gate_of_the_quantizer_can_switch_the_tensor_off() -> None:
    gated = Gated(two_layers(), prune=False)
    quantizer = gated.quantizers["2.weight"] = GatedQuantizer(signed=True, bits=(2, 8), zero=True).double()
    nn.init.constant_(quantizer.gates.logits, -1.0)
    on2, on8 = gated.on("2.weight")
    assert only(gated, "2.weight") == pytest.approx((2 * on2 + 8 * on2 * on8) * SECOND / FIRST, rel=1e-6)
    gated.quantizers["2.input"].fix(8)
    bops = FIRST * 64 + SECOND * 8 * (2 * on2 + 6 * on2 * on8)
    assert close(gated.penalty("expected_bops")(), 100 * bops / ((FIRST + SECOND) * 1024))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["two layers", "cifar_resnet8", "inverted", *OWN])
def test_with_certain_gates_expected_and_counted_costs_agree(name: str, dtype: torch.dtype) -> None:
    network = two_layers() if name == "two layers" else topology(name)
    model = CostModel(network)
    for seed in range(2):
        plan = random_plan(network, seed)
        gated = Gated(network, bits=(2, 3, 4, 8, 16, 32), dtype=dtype)
        with torch.no_grad():
            for tensor, quantizer in gated.quantizers.items():
                opened = torch.tensor([width <= plan.bits[tensor] for width in quantizer.bits[1:]])
                quantizer.gates.logits.copy_(torch.where(opened, 50.0, -50.0))
            for layer, channels in gated.channels.items():
                kept = torch.zeros(channels.gates.logits.numel(), dtype=torch.bool)
                kept[list(plan.kept.get(layer, range(kept.numel())))] = True
                channels.gates.logits.copy_(torch.where(kept, 50.0, -50.0))
        plan = Plan(plan.bits, {layer: kept for layer, kept in plan.kept.items() if layer in gated.channels})
        penalty = gated.penalty("expected_bops", cost_model=model)
        assert penalty().item() == pytest.approx(model.count(plan).relative_bops, rel=1e-6)


class Operations(TorchDispatchMode):
    """Writes down which operations run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", PENALTIES)
def test_a_training_step_compiles_whole_and_asks_the_device_nothing(kind: str) -> None:
    gated = Gated(topology("residual"), dtype=torch.float32)
    next(iter(gated.channels.values())).fix()
    gated.quantizers["head.weight"].fix(8)
    gated.quantizers["outer.input"].turn_off()
    penalty = gated.penalty(kind, num_examples=100)
    with Operations() as operations:
        plain = penalty()
        plain.backward()
    expected = [value.grad for value in gated.logits()]
    waiting = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "prod", "cumprod"}
    assert not waiting & operations.names
    for value in gated.logits():
        value.grad = None
    compiled = torch.compile(penalty, backend="aot_eager", fullgraph=True)()
    compiled.backward()
    torch.testing.assert_close(compiled, plain)
    torch.testing.assert_close([value.grad for value in gated.logits()], expected)


@pytest.mark.parametrize("kind", PENALTIES)
def test_it_owns_nothing_and_a_copy_reads_the_copied_gates(kind: str) -> None:
    gated = Gated(two_layers())
    both = nn.ModuleDict({"network": gated, "penalty": gated.penalty(kind, num_examples=10)})
    assert both["penalty"].state_dict() == {}
    assert list(both["penalty"].parameters()) == []
    before = both["penalty"]().item()
    copied = copy.deepcopy(both)
    with torch.no_grad():
        for logits in copied["network"].logits():
            logits.add_(1.0)
    assert copied["penalty"]().item() > before
    assert both["penalty"]().item() == before
    copied["penalty"]().backward()
    assert copied["network"].channels["0"].gates.logits.grad is not None
    assert gated.channels["0"].gates.logits.grad is None


def test_half_precision_gates_are_charged_in_single_precision() -> None:
    gated = Gated(two_layers(), dtype=torch.bfloat16)
    exact = Gated(two_layers())
    for half, double in zip(gated.logits(), exact.logits(), strict=True):
        double.data.copy_(half.data)
    assert gated.penalty()().dtype == torch.float32
    assert gated.penalty()().item() == pytest.approx(exact.penalty()().item(), rel=1e-6)


@pytest.mark.parametrize("kind", PENALTIES)
def test_a_network_without_gates_costs_nothing_but_its_bits(kind: str) -> None:
    expected = 100.0 if kind == "expected_bops" else 0.0
    assert make_penalty(two_layers(), {}, {}, kind, num_examples=10)().item() == expected


def test_errors_name_what_was_wrong_and_the_way_out() -> None:
    gated, filtered = Gated(two_layers()), topology("depthwise")
    with pytest.raises(ValueError, match=r"'l0'; it is one of paper, expected_bops, variational"):
        gated.penalty("l0")
    for examples in (None, 0):
        with pytest.raises(ValueError, match=r"examples is (None|0): give num_examples=len\(dataset\)"):
            gated.penalty("variational", num_examples=examples)
    with pytest.raises(ValueError, match=r"called 'nine.weight'; there are: 0.weight"):
        make_penalty(two_layers(), {"nine.weight": gated.quantizers["0.weight"]}, {})
    with pytest.raises(KeyError, match="no layer is called 'nine'"):
        make_penalty(two_layers(), {}, {"nine": ChannelGate(4)})
    with pytest.raises(ValueError, match=r"'filter' has a gate for 8 channels; .* depthwise layer has none"):
        make_penalty(filtered, {}, {"filter": ChannelGate(8)})
    with pytest.raises(ValueError, match="'0' has a gate for 5 channels"):
        make_penalty(two_layers(), {}, {"0": ChannelGate(5)}, "expected_bops")
    gated.quantizers["0.weight"] = GatedQuantizer(signed=True, zero=True).double()
    with pytest.raises(ValueError, match=r"channel gates of '0' are the first gate of '0.weight'.* zero=False"):
        gated.penalty()
    gated.penalty("expected_bops")
