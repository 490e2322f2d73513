"""The cost of widths that are learned without gates."""

import pytest
import torch

import bayesbits as bb
from tests.methods.quantizers import IMAGES, network


def attached(**options):
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="dq", **options))
    compressor.calibrate([IMAGES])
    return compressor


def test_it_is_the_counted_cost_and_differentiable_in_the_widths():
    compressor = attached()
    penalty = compressor.penalty()
    assert penalty.item() == pytest.approx(compressor.cost().relative_bops, rel=1e-5)
    assert penalty.item() == pytest.approx(6.25, rel=1e-5)  # 8/8
    penalty.backward()
    for group in compressor.parameter_groups():
        if group["name"] == "gates":
            assert all(parameter.grad.item() < 0 for parameter in group["params"])  # larger steps cost less
    assert compressor.expected_relative_bops().item() == pytest.approx(6.25, rel=1e-5)


def test_bytes_and_decided_widths():
    compressor = attached(penalty="expected_bytes")
    assert compressor.penalty().item() == pytest.approx(compressor.cost().weight_bytes, rel=0.05)
    with torch.no_grad():
        compressor.attachment.quantizers["7.weight"].log2_step.add_(1.5)
    decided = compressor.attachment.expected_bops(decided=True)
    assert not decided.requires_grad
    assert decided.item() == pytest.approx(compressor.cost().relative_bops, rel=1e-5)
    assert decided.item() < 6.25


def test_fixed_widths_are_counted_as_they_are():
    compressor = attached()
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
    assert compressor.penalty().item() == pytest.approx(compressor.cost().relative_bops, rel=1e-5)


def test_a_formula_over_gates_is_refused():
    with pytest.raises(ValueError, match="learns widths without gates"):
        attached(penalty="variational", num_examples=10)
