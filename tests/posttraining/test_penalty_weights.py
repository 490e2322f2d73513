"""The default weights of the penalty: by hand, the same trade-off for losses of any scale, and clear errors."""

import pytest
import torch

import bayesbits as bb
from bayesbits.posttraining.losses import batch_loss
from bayesbits.posttraining.penalty_weights import MULTIPLES, USUAL_WEIGHT, default_weights, natural_weight
from tests.posttraining.networks import attached, examples, pairs


def prepared(**options) -> bb.Compressor:
    compressor = attached(bb.Spec(prune=False, gates="hard_sigmoid", **options))
    compressor.calibrate([examples()[0]], "mse")
    return compressor


def test_the_scale_is_what_the_lowest_widths_cost_over_what_they_save():
    compressor = prepared(bits=(2, 4, 8))
    x, y = examples()
    loss = batch_loss(compressor, "output", [x], [y])
    state = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    scale = natural_weight(compressor, compressor.penalty, loss, 1)
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    with torch.no_grad():
        wide = (loss(0).item(), compressor.penalty().item())
        for quantizer in compressor.attachment.quantizers.values():
            if quantizer.mode == "learning":
                quantizer.gates.logits.fill_(-6.0)
        low = (loss(0).item(), compressor.penalty().item())
    assert all(bits <= 8 for bits in compressor.plan().bits.values())
    assert compressor.plan().bits["hidden.weight"] == 2
    assert scale == pytest.approx((low[0] - wide[0]) / (wide[1] - low[1]), rel=1e-5)


def test_a_loss_of_another_scale_has_weights_of_that_scale_and_the_same_front():
    fronts = []
    for factor in (1.0, 1000.0):
        compressor = prepared(bits=(2, 4, 8))

        def scaled(output, float_output, factor=factor):
            return factor * (output - float_output).square().mean()

        config = bb.PosttrainConfig(loss=scaled, steps=30, gate_lr=0.5)
        fronts.append(bb.posttrain(compressor, [x for x, _ in pairs()], config=config))
    first, second = ([point.mu for point in front.points] for front in fronts)
    assert second == pytest.approx([1000 * mu for mu in first], rel=0.06)
    costs = [[point.relative_bops for point in front.points] for front in fronts]
    assert costs[0][:-1] == pytest.approx(costs[1][:-1], rel=0.2)
    assert costs[0][-1] == pytest.approx(costs[1][-1], rel=0.5)  # a gate that is near its decision
    assert costs[0][-1] < 0.7 * costs[0][0]


def test_the_weights_are_multiples_that_increase():
    compressor = prepared(bits=(2, 4, 8))
    loss = batch_loss(compressor, "mse", [examples()[0]], [])
    scale, weights = (
        natural_weight(compressor, compressor.penalty, loss, 1),
        default_weights(compressor, compressor.penalty, loss, 1),
    )
    assert weights == pytest.approx([scale * multiple for multiple in MULTIPLES["hard_sigmoid"]], rel=0.06)
    assert list(weights) == sorted(set(weights))


def test_where_the_probe_says_nothing_there_is_a_usual_weight():
    compressor = prepared(bits=(2, 4))
    assert natural_weight(compressor, compressor.penalty, lambda _: torch.zeros(()), 1) == USUAL_WEIGHT
    assert natural_weight(compressor, compressor.penalty, lambda _: torch.full((), torch.nan), 1) == USUAL_WEIGHT
    compressor.fix()
    assert natural_weight(compressor, compressor.penalty, lambda _: torch.zeros(()), 1) == USUAL_WEIGHT


def test_tensors_that_are_not_charged_have_no_part_in_the_scale():
    compressor = prepared(bits=(2, 4, 8))
    loss = batch_loss(compressor, "output", [examples()[0]], [])
    penalty = compressor.attachment.expected_bytes
    scale = natural_weight(compressor, penalty, loss, 1)
    with torch.no_grad():
        wide = (loss(0).item(), penalty().item())
        for name, quantizer in compressor.attachment.quantizers.items():
            if quantizer.mode == "learning" and name.endswith("weight"):
                quantizer.gates.logits.fill_(-6.0)
        low = (loss(0).item(), penalty().item())
    assert compressor.plan().bits["hidden.input"] == 8
    assert scale == pytest.approx((low[0] - wide[0]) / (wide[1] - low[1]), rel=1e-5)
