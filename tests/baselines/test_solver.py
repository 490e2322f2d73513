"""The solver: a point within the budget that can be restored; wrong arguments are refused before any work."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import solve
from tests.graph.attention import attention
from tests.graph.attention import examples as batch
from tests.posttraining.networks import accuracy, attached, examples, pairs

BUDGETS = ("6.25% bops", "1.5% bops", "2 kBOPs", "400 bytes", "1.5% bops, 350 bytes")


def inputs():
    return [x for x, _ in pairs()]


def never():
    raise AssertionError("batches were read")
    yield


@pytest.mark.parametrize("scores", ["gradient", "measured"])
@pytest.mark.parametrize("text", BUDGETS)
def test_the_point_is_within_the_budget_and_can_be_restored(text, scores):
    compressor = attached()
    compressor.calibrate(inputs(), "mse")
    state = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    point = solve(compressor, inputs(), text, scores, loss="output")
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    bb.restore(compressor, point)
    budget = bb.Budget.parse(text)
    assert compressor.plan() == point.plan
    assert budget.allows(compressor.cost())
    assert compressor.cost().relative_bops == point.relative_bops
    assert budget.used(compressor.cost()) > 0.6
    if text == "6.25% bops":
        assert accuracy(compressor.model) > 85


def test_a_budget_may_be_a_record_and_labels_may_be_used():
    compressor = attached()
    point = solve(compressor, pairs(), bb.Budget(relative_bops=3.0))
    other = solve(attached(), pairs(), "3% bops", loss_fn=nn.functional.cross_entropy)
    assert point.plan == other.plan
    assert compressor.attachment.calibrated


def test_what_matters_less_has_fewer_bits():
    """Two branches of equal cost, one of which hardly reaches the output."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.large, self.small = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.large(x) + 1e-3 * self.small(x)

    torch.manual_seed(0)
    spec = bb.Spec(bits=(2, 4, 8), prune=False, input_bits=8, residual_bits=None)
    compressor = bb.attach(Branches().eval(), torch.zeros(1, 4), spec)
    x = examples(64)[0]
    for scores in ("gradient", "measured"):
        bits = solve(compressor, x.split(32), "4% bops", scores, loss="mse").plan.bits
        assert (bits["large.weight"], bits["small.weight"]) == (8, 2)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (2, "budget is 2; it has a unit"),
        ("2", "does not say of what"),
        ("-2% bops", "not positive"),
        ("2% bops, 3% bops", "limits the bit operations twice"),
        ("2 apples", "unit 'apples'"),
        (None, "the solver needs one"),
        ("0.01% bops", "cannot be reached"),
        ("50% bops, 10 bytes", "cannot be reached"),
    ],
)
def test_a_budget_that_cannot_be_met_is_refused_before_batches_are_read(budget, message):
    with pytest.raises(ValueError, match=message):
        solve(attached(), never(), budget, loss="output")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": "random"}, "scores is 'random'; it is one of gradient, measured"),
        ({"loss": "layers"}, "loss is 'layers'; it is one of labels, output, cosine, mse"),
        ({"loss": lambda y, f: y.sum()}, "second derivative is known"),
        ({"loss": "output", "loss_fn": nn.functional.cross_entropy}, "give one of them"),
    ],
)
def test_wrong_arguments_are_refused_before_batches_are_read(options, message):
    with pytest.raises(ValueError, match=message):
        solve(attached(), never(), "2% bops", **options)


def test_a_network_in_training_mode_is_refused():
    compressor = attached()
    compressor.model.train()
    with pytest.raises(ValueError, match="training mode"):
        solve(compressor, never(), "2% bops", loss="output")


def test_measured_scores_take_a_loss_of_ones_own():
    point = solve(attached(), inputs(), "2% bops", "measured", loss=lambda y, f: (y - f).abs().mean())
    assert point.relative_bops <= 2


@pytest.mark.parametrize("scores", ["gradient", "measured"])
def test_operands_of_products_have_widths_too(scores):
    compressor = bb.attach(attention(), batch(1), bb.Spec(bits=(2, 4, 8), activation_products=True))
    point = solve(compressor, [batch(16), batch(16) + 1], "1.8% bops", scores=scores, loss="output")
    cost = compressor.cost(point.plan)
    assert 1.4 < cost.relative_bops <= 1.8
    assert len({point.plan.bits[f"sdpa.{name}"] for name in ("query", "key", "probabilities", "value")}) > 1
    bb.restore(compressor, point)
    assert compressor.attachment.quantizers["sdpa.probabilities"].beta.item() == 1.0
