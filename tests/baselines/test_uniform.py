"""The fixed baseline."""

import pytest
import torch

import bayesbits as bb
from bayesbits.baselines import uniform
from tests.posttraining.networks import accuracy, attached, examples, trained


def test_widths_and_cost_of_8_8():
    compressor = attached(bb.Spec(residual_bits=8))
    plan = uniform(compressor, [examples()[0]])
    everything = bb.Plan.uniform(compressor.topology, residual_bits=8).bits
    assert plan.bits == {name: everything[name] for name in plan.bits}
    assert set(everything) - set(plan.bits) <= set(compressor.topology.emitted_tensors), "which have no quantizer here"
    assert compressor.cost(plan).relative_bops == 6.25


def test_what_the_spec_fixes_stays():
    compressor = attached(bb.Spec(input_bits=4, residual_bits=6, rules={"head": {"skip": True}}))
    plan = uniform(compressor, [examples()[0]], 3, 5)
    assert plan.bits == {
        "stem.weight": 3, "hidden.weight": 3, "head.weight": 32,
        "stem.input": 4, "hidden.input": 5, "head.input": 32,
        "hidden.output": 6,
    }  # fmt: skip
    compressor.fix(plan)


def test_what_a_rule_fixes_stays():
    compressor = attached(bb.Spec(rules={"hidden.weight": {"bits": 8}}))
    plan = uniform(compressor, [examples()[0]], 3, 5)
    assert (plan.bits["hidden.weight"], plan.bits["stem.weight"], plan.bits["hidden.input"]) == (8, 3, 5)
    compressor.fix(plan)
    narrow = attached(bb.Spec(bits=(8,)))
    assert uniform(narrow, [examples()[0]], 3, 5).bits["hidden.weight"] == 3, "no rule fixes it"


def test_an_input_and_operands_that_are_learned_are_like_other_activations():
    compressor = attached(bb.Spec(input_bits="learned", residual_bits="learned"))
    plan = uniform(compressor, [examples()[0]], 3, 5)
    assert (plan.bits["stem.input"], plan.bits["hidden.output"], plan.bits["hidden.input"]) == (5, 5, 5)
    assert compressor.cost(uniform(compressor, [examples()[0]])).relative_bops == 6.25


@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_8_8_has_the_ranges_of_the_method_and_is_as_good_as_float(method):
    compressor, calibrated = attached(), attached()
    x, _ = examples()
    compressor.fix(uniform(compressor, [x], method=method))
    calibrated.calibrate([x], method, reference_bits=8)
    for name, quantizer in calibrated.attachment.quantizers.items():
        assert torch.equal(quantizer.log_beta, compressor.attachment.quantizers[name].log_beta)
    assert abs(accuracy(compressor.model) - accuracy(trained())) < 2


def test_weights_and_activations_have_ranges_for_their_own_widths():
    x, _ = examples()
    found, of_weights, of_activations = attached(), attached(), attached()
    found.fix(uniform(found, [x], 3, 8, method="mse"))
    of_weights.calibrate([x], "mse", reference_bits=3)
    of_activations.calibrate([x], "mse", reference_bits=8)
    different = 0
    for name, quantizer in found.attachment.quantizers.items():
        ours, others = (
            (of_weights, of_activations) if name in found.topology.weight_tensors else (of_activations, of_weights)
        )
        assert torch.equal(quantizer.log_beta, ours.attachment.quantizers[name].log_beta)
        different += not torch.equal(quantizer.log_beta, others.attachment.quantizers[name].log_beta)
    assert different >= 3


@pytest.mark.parametrize(("weights", "activations"), [(4, 8), (8, 4), (8, 8), (4, 4)])
def test_by_default_narrow_widths_have_ranges_of_the_least_squared_error_and_others_clip_nothing(weights, activations):
    x, _ = examples()
    found, widest, narrow = attached(), attached(), attached()
    found.fix(uniform(found, [x], weights, activations))
    widest.calibrate([x], "minmax")
    narrow.calibrate([x], "mse", reference_bits=activations, weight_bits=weights)
    different = 0
    for name, quantizer in found.attachment.quantizers.items():
        bits = weights if name in found.topology.weight_tensors else activations
        bits = quantizer.bits[0] if len(quantizer.bits) == 1 else bits
        ours, others = (widest, narrow) if bits == 8 else (narrow, widest)
        assert torch.equal(quantizer.log_beta, ours.attachment.quantizers[name].log_beta) or len(quantizer.bits) == 1
        different += not torch.equal(quantizer.log_beta, others.attachment.quantizers[name].log_beta)
    assert different >= 2 or (weights, activations) == (8, 8)
