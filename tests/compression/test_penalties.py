"""Every penalty by hand, and its gradients."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

import bayesbits as bb
from bayesbits.compression.penalties import PENALTIES, make_penalty
from bayesbits.compression.penalty_base import Penalty
from bayesbits.cost import CostModel
from bayesbits.functional.gates import HALF_LOGIT, decide, probability_on
from bayesbits.nn import ChannelGate, GatedQuantizer
from bayesbits.records.plan import Plan
from tests.compression.gated import FIRST, SECOND, Gated, close, mean, topology, two_layers
from tests.graph.networks import OWN
from tests.latency_tables import conversion_ms, made_up_table
from tests.networks import random_plan, zoo


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


def test_the_expected_bytes_are_those_of_weights_and_biases() -> None:
    gated = Gated(two_layers())
    (a4, a8), (b4, b8), channels = gated.on("0.weight"), gated.on("2.weight"), sum(gated.on("0"))
    first = 3 * channels * (2 + 2 * a4 + 4 * a4 * a8) / 8 + 4 * channels
    second = 2 * channels * (2 + 2 * b4 + 4 * b4 * b8) / 8 + 4 * 2
    assert close(gated.penalty("expected_bytes")(), first + second)


def test_the_expected_latency_by_hand() -> None:
    gated = Gated(two_layers(), bits=(4, 8, 16, 32))
    gated.quantizers["0.input"].fix(8)
    table = made_up_table(two_layers())
    (_, w16, w32), (_, v16, _), (a8, a16, a32) = (gated.on(name) for name in ("0.weight", "2.weight", "2.input"))
    w, v, a = gated.on("0.weight")[0] * w16, gated.on("2.weight")[0] * v16, a8 * a16
    channels = sum(gated.on("0"))
    first = (1 - w) * ((1 - a) * 1.0 + a * 1.5) + w * 3.0
    first = 0.01 + 1e-5 * 3 * channels * first + w * (conversion_ms(3, 3) + (1 - a) * conversion_ms(channels, 4))
    integer = (1 - v) * (1 - a)
    second = (
        0.01 + 1e-5 * 2 * channels * (1.5 * integer + 3.0 * (1 - integer)) + (1 - a) * v * conversion_ms(channels, 4)
    )
    share = (3 + channels) / 7
    wide = a * a32  # the input of the network has no part in it
    rounded = a - wide
    overhead = (1 - rounded - wide) * (0.01 + 0.01 * share) + rounded * (0.02 + 0.04 * share) + wide * 0.03
    assert w32 < 1
    assert close(gated.penalty("expected_latency", table=table)(), first + second + overhead)


@pytest.mark.parametrize("kind", ["expected_bops", "expected_bytes", "expected_latency"])
def test_the_cost_of_the_decision_has_every_gate_on_or_off(kind: str) -> None:
    gated = Gated(topology("residual"))
    penalty = gated.penalty(kind)
    decided = penalty(decided=True)
    assert not decided.requires_grad
    for logits in gated.logits():
        logits.data = torch.where(decide(logits), 100.0, -100.0).to(logits)
    assert close(penalty(), decided.item())


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
    if kind == "expected_bytes":  # activations take no bytes
        operands += [gated.quantizers[activation.name].gates.logits for activation in gated.network.activations]
    counted = not kind.startswith("expected_")
    logits = [value for value in gated.logits() if counted or all(value is not other for other in operands)]
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
                kept = torch.zeros(channels.channels, dtype=torch.bool)
                kept[list(plan.kept.get(layer, range(kept.numel())))] = True
                channels.gates.logits.copy_(torch.where(kept, 50.0, -50.0))
        plan = Plan(plan.bits, {layer: kept for layer, kept in plan.kept.items() if layer in gated.channels})
        penalty = gated.penalty("expected_bops", cost_model=model)
        assert penalty().item() == pytest.approx(model.count(plan).relative_bops, rel=1e-6)
        table = made_up_table(network)
        latency = gated.penalty("expected_latency", cost_model=model, table=table)
        assert latency().item() == pytest.approx(model.count(plan, table).latency_ms, rel=1e-6)
        assert latency(decided=True).item() == pytest.approx(latency().item(), rel=1e-6)


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


def test_errors_name_what_was_wrong_and_the_way_out() -> None:
    gated, filtered = Gated(two_layers()), topology("depthwise")
    with pytest.raises(ValueError, match=r"'l0'; it is one of paper, expected_bops, expected_bytes, expected_latency"):
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
    with pytest.raises(ValueError, match="needs a latency table: write one by `bayesbits measure`"):
        make_penalty(two_layers(), gated.quantizers, {}, "expected_latency")
    with pytest.raises(ValueError, match="another network"):
        gated.penalty("expected_latency", table=made_up_table(filtered))


class OnesPenalty(Penalty):
    """Every gate in use is charged its probability alone, whatever its width."""

    @staticmethod
    def prices(widths: tuple[int, ...], mac_share: float) -> list[float]:
        return [1.0] * len(widths)


def test_a_penalty_that_is_named_in_the_table_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(PENALTIES) == ["paper", "expected_bops", "expected_bytes", "expected_latency", "variational"]
    monkeypatch.setitem(PENALTIES, "ones", OnesPenalty)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    spec = bb.Spec(bits=(2, 4), penalty="ones", prune=False, input_bits=32, rules={"0": {"bits": 8}})
    compressor = bb.attach(model, torch.randn(2, 4), spec)
    on = 1 / (1 + math.exp(-6.0 - 2 / 3 * math.log(11)))
    # The weight and the input of the last layer: a first gate that is always open, and one that is on with P(z > 0).
    assert compressor.penalty().item() == pytest.approx(2 * (1 + on), rel=1e-6)
    with pytest.raises(ValueError, match=r"Spec\.penalty is 'twos'; .* expected_latency, variational, ones"):
        bb.Spec(penalty="twos")
