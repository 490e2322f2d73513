"""Which gates a penalty charges, for which MACs, and what is decided already."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from bayesbits.compression.penalties import PENALTIES, make_penalty
from bayesbits.functional.gates import sample_hard_concrete
from bayesbits.graph.trace import trace
from bayesbits.nn import GatedQuantizer
from tests.compression.gated import FIRST, SECOND, Gated, close, mean, topology, two_layers
from tests.graph.attention import attention, examples
from tests.graph.networks import ROWS, Tied
from tests.networks import traced_once, zoo

BY_FORMULA = [kind for kind in PENALTIES if kind != "expected_latency"]
"""Latencies come from a table; their expectation is held by tests/cost/test_latency.py."""


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


@pytest.mark.parametrize("kind", BY_FORMULA)
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
    elif kind == "expected_bytes":
        expected = 3 * 3 * (2 + 2 * w4 + 4 * w4 * w8) / 8 + 4 * 3 + 3 * 2 * 4 + 4 * 2
    else:
        expected = 0.75 * (2 + 4 * w4 + 8 * w4 * w8) + 2 + 4 * x4 + 8 * x4 * x8
        expected += (2 + 4 * a4 + 8 * a4 * a8) * SECOND / FIRST
    assert close(penalty(), expected)
    for quantizer in gated.quantizers.values():
        quantizer.fix(8)
    assert close(penalty(), {"expected_bops": 6.25 * 0.75, "expected_bytes": 9 + 12 + 6 + 8}.get(kind, 0.0))
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


@pytest.mark.parametrize("kind", BY_FORMULA)
def test_a_network_without_gates_costs_nothing_but_its_bits(kind: str) -> None:
    expected = {"expected_bops": 100.0, "expected_bytes": 4.0 * (12 + 4 + 8 + 2)}.get(kind, 0.0)
    assert make_penalty(two_layers(), {}, {}, kind, num_examples=10)().item() == expected


def test_operands_of_a_product_pay_for_its_macs() -> None:
    network = trace(attention(), examples(), activation_products=True)
    largest = max(network.macs_of.values())
    quantizer = GatedQuantizer(signed=False, bits=(4, 8))
    penalty = make_penalty(network, {"sdpa.probabilities": quantizer}, {}, "paper")
    with torch.no_grad():
        quantizer.gates.logits.fill_(100.0)
    assert penalty().item() == pytest.approx((4 + 8) * network.macs_of["sdpa.context"] / largest)
