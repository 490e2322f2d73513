"""The sensitivity baseline: by hand on one layer, in the order and with the scores of plain runs, and resumable."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import Sensitivity, sensitivity
from bayesbits.baselines.sensitivity import accuracy, cumulative, likelihood
from bayesbits.posttraining.losses import divergence
from tests.baselines.networks import calibrated, pairs
from tests.posttraining.networks import attached, examples, trained


def negative_loss(output, labels):
    return -nn.functional.cross_entropy(output, labels)


def test_by_hand():
    """A chain y = b a x, of which inputs (0, x) see 0.25 of a = (1, 0.25), and b = 0.6; both end at code 127 of 8 bits.

    At 2 bits there are three values, 0 and two thirds of the range on both sides: a becomes (0.6693, 0), and b becomes
    0.4016. The score is minus the squared error. With b alone y is 0.1004 x instead of 0.15 x; with a it is always 0.
    """
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.25]]))
        model[1].weight.fill_(0.6)
    rules = {"1.input": {"bits": 32}}
    compressor = bb.attach(model, torch.zeros(1, 2), bb.Spec(prune=False, input_bits=32, rules=rules))
    x = torch.stack([torch.zeros(32), torch.linspace(1, 2, 32)], 1)
    compressor.calibrate([x])
    size = x[:, 1].square().mean().item()
    found = sensitivity(compressor, [(x, 0.15 * x[:, 1:])], widths=(2,), score_fn=lambda y, t: -(y - t).square().mean())
    assert found.reference == pytest.approx(0, abs=1e-6)
    by_hand = [("1.weight", -((0.25 * 0.4 * 255 / 254 - 0.15) ** 2) * size), ("0.weight", -(0.15**2) * size)]
    assert [lowering.tensor for lowering in found.alone] == [name for name, _ in by_hand]
    assert [lowering.score for lowering in found.alone] == pytest.approx([s for _, s in by_hand], rel=1e-3)
    assert [str(change) for change in found.changes] == ["1.weight -> 2", "0.weight -> 2"]
    assert [point.plan.bits["1.weight"] for point in found.path] == [16, 2, 2]
    assert [point.plan.bits["0.weight"] for point in found.path] == [16, 16, 2]
    assert [point.score for point in found.path] == pytest.approx([0, by_hand[0][1], by_hand[1][1]], rel=1e-3, abs=1e-6)


def test_changes_add_up_and_a_width_never_rises():
    steps = cumulative({"a": 16, "b": 16}, [("a", 4), ("b", 8), ("a", 8), ("b", 2)])
    assert [(step["a"], step["b"]) for step in steps] == [(16, 16), (4, 16), (4, 8), (4, 2)]


@pytest.mark.parametrize("loss", ["labels", "output"])
def test_scores_are_those_of_plain_runs(loss):
    compressor = calibrated(bb.Spec(residual_bits=8, bits=(2, 4, 8, 16)))
    state = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    batches = pairs() if loss == "labels" else [x for x, _ in pairs()]
    found = sensitivity(
        compressor, batches, widths=(4, 2), loss=loss, score_fn=negative_loss if loss == "labels" else None
    )
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    x, y = examples(96)
    with torch.no_grad():
        target = trained()(x).log_softmax(-1)
        for point in (*found.path[:3], *found.path[-3:]):
            bb.restore(compressor, point)
            output = compressor.model(x)
            score = negative_loss(output, y) if loss == "labels" else -divergence(output, target)
            assert point.score == pytest.approx(score.item(), rel=1e-4, abs=1e-5)
    assert [lowering.score for lowering in found.alone] == sorted((one.score for one in found.alone), reverse=True)
    assert len(found.alone) == 2 * 5  # three weights and two activations; the input and the operands are fixed
    assert {point.plan.bits["stem.input"] for point in found.path} == {8}
    assert set(found.path[-1].plan.bits.values()) == {2, 8}
    costs = [point.relative_bops for point in found.path]
    assert costs == sorted(costs, reverse=True)
    assert all(point in found.path for point in found.front.points)
    assert Sensitivity.from_json(found.to_json()) == found


def test_accuracy_is_in_percent_and_likelihood_is_minus_the_cross_entropy():
    output, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 0, 1, 0])
    assert accuracy(output, labels).item() == 75.0
    assert likelihood(output, labels).item() == pytest.approx(negative_loss(output, labels).item())
    rows = (output.reshape(2, 2, 2), labels.reshape(2, 2))
    assert (accuracy(*rows), likelihood(*rows)) == (accuracy(output, labels), likelihood(output, labels))


def test_between_equal_accuracies_the_likelihood_decides():
    """Examples so easy that most changes do no harm to any: with the accuracy alone the order would be of savings."""
    x, _ = examples(96)
    output = trained()(x).detach()
    y, clear = output.argmax(1), output.softmax(1).amax(1) > 0.97
    batches = [(x[clear][:32], y[clear][:32]), (x[clear][32:], y[clear][32:])]
    compressor = calibrated()
    found = sensitivity(compressor, batches, widths=(8, 4))
    losses = {(one.tensor, one.bits): one.score for one in
              sensitivity(compressor, batches, widths=(8, 4), score_fn=negative_loss).alone}  # fmt: skip
    assert len({one.score for one in found.alone}) < len(found.alone)
    keys = [(one.score, losses[one.tensor, one.bits]) for one in found.alone]
    assert keys == sorted(keys, reverse=True)
    assert found.reference == 100.0


def test_it_can_be_read():
    found = sensitivity(calibrated(), pairs(), widths=(4, 2))
    lines = str(found).splitlines()
    assert lines[0] == f"with every tensor at 16 bits the score is {found.reference:.6g}"
    assert lines[3].split() == [*str(found.alone[0]).split(), f"{found.alone[0].score:.6g}"]
    last = found.front.points[0]
    change = found.changes[found.path.index(last) - 1]
    row = next(line for line in lines if line.startswith(f"  {last.relative_bops:8.4f}"))
    assert row.split() == [f"{last.relative_bops:.4f}", f"{last.score:.6g}", change.tensor, "->", str(change.bits)]
    for before, point, change in zip(found.path, found.path[1:], found.changes, strict=False):
        assert point.plan.bits == {**before.plan.bits, change.tensor: change.bits}
    assert len(found.changes) == len(found.path) - 1


def test_errors_say_what_to_do():
    compressor = attached()
    with pytest.raises(ValueError, match=r"call compressor\.calibrate"):
        sensitivity(compressor, pairs())
    compressor.calibrate([x for x, _ in pairs()])
    with pytest.raises(ValueError, match="loss is 'layers'"):
        sensitivity(compressor, pairs(), loss="layers")
    with pytest.raises(ValueError, match="score_fn compares with labels"):
        sensitivity(compressor, pairs(), loss="output", score_fn=negative_loss)
    with pytest.raises(ValueError, match="no tensor can be lowered to 3 bits"):
        sensitivity(compressor, pairs(), widths=(3,))
    with pytest.raises(ValueError, match=r"has no labels.* Without labels choose loss='output'$"):
        sensitivity(compressor, [x for x, _ in pairs()])
    with pytest.raises(ValueError, match=r"batch 2 .* has values that are NaN or infinite"):
        sensitivity(compressor, [*pairs()[:2], (pairs()[2][0] * torch.nan, pairs()[2][1])])
    with pytest.raises(TypeError, match="sensitivity takes the Compressor"):
        sensitivity(compressor.model, pairs())
    compressor.model.train()
    with pytest.raises(ValueError, match="in training mode"):
        sensitivity(compressor, pairs())


@pytest.mark.parametrize("budget", ["3% bops", bb.Budget(weight_bytes=300), "3% bops, 300 bytes"])
def test_with_a_budget_the_best_point_within_it_is_named(budget):
    compressor = calibrated(bb.Spec(bits=(2, 4, 8, 16), prune=False))
    found = sensitivity(compressor, pairs(), widths=(8, 4, 2), score_fn=negative_loss, budget=budget)
    limit = bb.Budget.parse(budget) if isinstance(budget, str) else budget
    within = [point.score for point in found.path if limit.allows(compressor.cost(point.plan))]
    assert 0 < len(within) < len(found.path)
    assert found.within.score == max(within)
    bb.restore(compressor, found.within)
    assert limit.allows(compressor.cost())
    assert Sensitivity.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("1% bops", r"with the narrowest widths that are allowed, and all channels"),
        (3, "budget is 3; it has a unit"),
        ("-3% bops", "not positive"),
    ],
)
def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_measured(budget, message):
    compressor = calibrated(bb.Spec(bits=(2, 4, 8, 16), prune=False))

    def never():
        raise AssertionError("batches were read")
        yield

    with pytest.raises(ValueError, match=message):
        sensitivity(compressor, never(), widths=(8, 4), budget=budget)
    assert sensitivity(compressor, pairs(), widths=(4,)).within is None
