"""Post-training: one step by hand, weights untouched, a front that goes down, and clear errors."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.functional.gates import INITIAL_LOGIT, KINDS
from bayesbits.posttraining.penalty_weights import MULTIPLES
from bayesbits.posttraining.sweep import batch_order
from tests.posttraining.networks import FEW, accuracy, attached, examples, pairs


def test_one_step_by_hand():
    """One weight and one input, gates of the kind "sigmoid"; Adam's first step is the rate times the gradient's sign.

    Weight 0.25 in the range 1: Q_2 = 0 and, in steps of 2/15, Q_4 = 4/15, so that y = z 4/15 x with z = sigmoid(phi).
    With targets t = 10 x the gradient of mean (y - t)^2 is 2 (z 4/15 - 10) 4/15 z (1 - z) mean x^2: it opens the
    gate, and the price closes it. The second call starts where the first one did.
    """
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.25]]))
    spec = bb.Spec(prune=False, input_bits=32, bits=(2, 4), gates="sigmoid")
    compressor = bb.attach(model, torch.zeros(1, 2), spec)
    inputs = torch.stack([torch.zeros(32), torch.linspace(-1, 1, 32)], 1)
    compressor.calibrate([inputs])
    quantizer = compressor.attachment.quantizers["0.weight"]
    phi = INITIAL_LOGIT
    targets = 10 * inputs[:, 1:]
    squared = inputs[:, 1].square().mean().item()
    z = 1 / (1 + math.exp(-phi))
    task = 2 * (z * 4 / 15 - 10) * 4 / 15 * z * (1 - z) * squared
    on = 1 / (1 + math.exp(-(phi - 2 / 3 * math.log(0.1 / 1.1))))
    price = 4 * on * (1 - on)  # lambda = 4 bits, the largest layer
    assert task < 0 < price
    for mu, direction in ((0.5 * -task / price, 1.0), (2.0 * -task / price, -1.0)):
        config = bb.PosttrainConfig(mus=(mu,), steps=1, gate_lr=0.125)
        bb.posttrain(compressor, [(inputs, targets)], "gates", config, loss_fn=nn.functional.mse_loss)
        assert quantizer.gates.logits.item() == pytest.approx(phi + direction * 0.125, abs=1e-5)


@pytest.mark.parametrize("learn", ["gates", "gates+ranges"])
@pytest.mark.parametrize("loss", ["labels", "output", "layers"])
def test_a_front_goes_down_and_no_weight_changes(learn, loss):
    compressor = attached(bb.Spec(residual_bits=None))
    batches = pairs() if loss == "labels" else [x for x, _ in pairs()]
    compressor.calibrate([x for x, _ in pairs()], "mse")
    own = {name: value.clone() for name, value in compressor.model.state_dict().items() if "bayesbits" not in name}
    ranges = {name: q.log_beta.clone() for name, q in compressor.attachment.quantizers.items()}
    flags = [module.training for module in compressor.model.modules()]
    lines: list[str] = []
    config = bb.PosttrainConfig(mus=FEW.mus, steps=FEW.steps, gate_lr=FEW.gate_lr, loss=loss)
    front = bb.posttrain(compressor, batches, learn, config, progress=lines.append)
    assert [point.mu for point in front.points] == list(FEW.mus)
    costs = [point.relative_bops for point in front.points]
    assert 100 > costs[0] > costs[-1]
    assert [f"mu {point.mu:g}: {point.relative_bops:.4g}% of the bit operations" for point in front.points] == lines
    for name, value in compressor.model.state_dict().items():
        assert "bayesbits" in name or torch.equal(value, own[name]), name
    moved = [name for name, q in compressor.attachment.quantizers.items() if not torch.equal(q.log_beta, ranges[name])]
    assert bool(moved) == (learn == "gates+ranges")
    assert compressor.attachment.quantizers["head.weight"].mode == "learning"
    assert [module.training for module in compressor.model.modules()] == flags


def test_the_front_so_far_is_given_out_after_each_point():
    fronts: list[bb.Front] = []
    front = bb.posttrain(attached(bb.Spec()), pairs(), "gates", FEW, keep=fronts.append)
    assert [one.points for one in fronts] == [front.points[: count + 1] for count in range(len(FEW.mus))]


def test_the_same_seed_gives_the_same_front():
    fronts = [bb.posttrain(attached(), pairs(), "gates+ranges", FEW) for _ in range(2)]
    assert fronts[0] == fronts[1]


@pytest.mark.parametrize("learn", ["gates", "gates+ranges"])
def test_the_same_call_gives_the_same_front_again(learn):
    compressor = attached(bb.Spec(residual_bits=None))
    fronts = [bb.posttrain(compressor, pairs(), learn, FEW) for _ in range(3)]
    assert fronts[0] == fronts[1] == fronts[2]


def test_ranges_of_another_calibration_are_started_from():
    one, other = attached(), attached()
    bb.posttrain(one, pairs(), "gates+ranges", FEW)
    for compressor in (one, other):
        compressor.calibrate([x for x, _ in pairs()], "percentile")
    assert bb.posttrain(one, pairs(), "gates+ranges", FEW) == bb.posttrain(other, pairs(), "gates+ranges", FEW)


@pytest.mark.parametrize("failure", ["loss", "interrupt", "evaluate"])
def test_a_point_that_fails_leaves_the_network_at_the_point_before(failure):
    calls: list[int] = []

    def loss_fn(output, labels):
        calls.append(len(calls))
        if failure == "interrupt" and len(calls) == 70:
            raise KeyboardInterrupt
        loss = nn.functional.cross_entropy(output, labels)
        return loss * math.nan if failure == "loss" and len(calls) > 65 else loss  # the third point has calls 61 to 90

    def evaluate(model: nn.Module) -> float:
        if failure == "evaluate" and len(calls) > 60:
            raise RuntimeError("no data")
        return accuracy(model)

    compressor, sane = attached(), attached()
    started = bb.posttrain(compressor, pairs(), "gates+ranges", FEW)
    errors = {
        "loss": pytest.raises(ValueError, match=r"at mu = 0\.3; gates and ranges are what they were before this point"),
        "interrupt": pytest.raises(KeyboardInterrupt),
        "evaluate": pytest.raises(RuntimeError, match="no data"),
    }
    with errors[failure]:
        bb.posttrain(compressor, pairs(), "gates+ranges", FEW, loss_fn=loss_fn, evaluate=evaluate)
    bb.posttrain(sane, pairs(), "gates+ranges", dataclasses.replace(FEW, mus=FEW.mus[:2]))
    expected = sane.attachment.state_dict()
    for name, value in compressor.attachment.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert bb.posttrain(compressor, pairs(), "gates+ranges", FEW) == started


def test_where_the_first_point_fails_nothing_has_changed():
    compressor = attached()
    front = bb.posttrain(compressor, pairs(), "gates+ranges", FEW)
    before = {
        name: value.clone() for name, value in compressor.attachment.state_dict().items() if "counter" not in name
    }
    with pytest.raises(ValueError, match="the loss became NaN"):
        bb.posttrain(compressor, pairs(), "gates+ranges", FEW, loss_fn=lambda output, labels: output.sum() * math.nan)
    after = compressor.attachment.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert bb.posttrain(compressor, pairs(), "gates+ranges", FEW) == front


def test_without_ranges_they_come_from_the_batches():
    one, other = attached(), attached()
    other.calibrate([x for x, _ in pairs()], "percentile")
    config = bb.PosttrainConfig(mus=(0.001,), steps=1, calibration="percentile")
    assert bb.posttrain(one, pairs(), config=config) == bb.posttrain(other, pairs(), config=config)


def test_learned_widths_are_worth_more_than_the_same_price_everywhere():
    compressor = attached(bb.Spec(prune=False, residual_bits=None))
    front = bb.posttrain(compressor, pairs(), "gates+ranges", FEW, evaluate=accuracy)
    everywhere = attached(bb.Spec(prune=False, residual_bits=None))
    everywhere.calibrate([x for x, _ in pairs()], "mse", reference_bits=2)
    everywhere.fix(bb.Plan.uniform(everywhere.topology, 2, 2))
    two_bits = accuracy(everywhere.model)
    assert max(point.score for point in front.points if point.relative_bops < 6.25) > two_bits + 5


def test_errors_say_what_to_do():
    compressor = attached()
    with pytest.raises(ValueError, match="learn is 'weights'; it is one of gates, gates\\+ranges"):
        bb.posttrain(compressor, pairs(), "weights")
    with pytest.raises(ValueError, match="loss_fn compares with labels"):
        bb.posttrain(compressor, pairs(), config=bb.PosttrainConfig(loss="output"), loss_fn=nn.functional.cross_entropy)
    with pytest.raises(ValueError, match="has no labels"):
        bb.posttrain(compressor, [x for x, _ in pairs()])
    with pytest.raises(TypeError, match="pass only the inputs"):
        bb.posttrain(compressor, pairs(), config=bb.PosttrainConfig(loss="output"))
    compressor.model.train()
    with pytest.raises(ValueError, match=r"the network is in training mode.*call model.eval\(\) first"):
        bb.posttrain(compressor, pairs())
    compressor.model.eval()
    compressor.calibrate([x for x, _ in pairs()])
    broken = [*pairs(), (torch.full((32, 4), math.nan), pairs()[0][1])]
    with pytest.raises(ValueError, match=r"batch 4 .* has values that are NaN or infinite"):
        bb.posttrain(compressor, broken)
    with pytest.raises(TypeError, match="posttrain takes the Compressor that attach returned, and this is a "):
        bb.posttrain(compressor.model, pairs())
    with pytest.raises(TypeError, match=r"one pair of tensors.*zip\(x\.split\(64\), y\.split\(64\)\)"):
        bb.posttrain(compressor, examples())
    compressor.fix(bb.Plan.uniform(compressor.topology))
    with pytest.raises(ValueError, match="no gate of this network learns"):
        bb.posttrain(compressor, pairs())


@pytest.mark.parametrize("kind", KINDS)
def test_without_weights_of_the_penalty_there_are_eight_that_suit_the_gates(kind):
    compressor = attached(bb.Spec(prune=False, gates=kind))
    front = bb.posttrain(compressor, pairs(), config=bb.PosttrainConfig(steps=1))
    mus = [point.mu for point in front.points]
    assert len(mus) == 8
    largest = MULTIPLES[kind][-1] / MULTIPLES[kind][0]
    assert mus[-1] / mus[0] == pytest.approx(largest, rel=0.1)


def test_every_batch_comes_once_before_any_comes_again():
    order = batch_order(4, 10, torch.Generator().manual_seed(0))
    assert sorted(order[:4]) == sorted(order[4:8]) == [0, 1, 2, 3]
    assert len(order) == 10
    assert order[:4] != order[4:8]
