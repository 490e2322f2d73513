"""Post-training within a budget: one more point, within it, and the best on the examples."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.compression.projection import project
from bayesbits.posttraining.budget_points import BudgetPoints

X = torch.randn(64, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def handle(bits=(2, 4, 8)):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 8), nn.ReLU(), nn.Linear(8, 4))
    return bb.attach(model.eval(), X[:2], bb.Spec(bits=bits, gates="hard_sigmoid", prune=False))


def front(budget, **options):
    compressor = handle()
    config = bb.PosttrainConfig(mus=(1e-4, 1e-2), steps=10, loss="output")
    return compressor, bb.posttrain(compressor, X.split(32), config=config, budget=budget, **options)


@pytest.mark.parametrize("text", ["1.5% bops", "700 bytes", "2% bops, 900 bytes"])
def test_the_last_point_is_within_the_budget_and_can_be_restored(text):
    kept = []
    compressor, found = front(text, keep=kept.append, evaluate=lambda model: 1.0)
    point, budget = found.points[-1], bb.Budget.parse(text)
    assert len(found.points) == 3
    assert kept[-1] == found
    assert point.mu in (1e-4, 1e-2)
    assert point.score == 1.0
    bb.restore(compressor, point)
    assert budget.allows(compressor.cost())
    assert budget.used(compressor.cost()) > 0.7  # a width of one of three layers is a large step


def test_the_sweep_itself_is_as_without_a_budget():
    assert front("1.5% bops")[1].points[:2] == front(None)[1].points


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("0.1% bops", "cannot be reached"),
        ("90% bops, 10 bytes", "cannot be reached"),
        ("2% bops, 3% bops", "limits the bit operations twice"),
        ("-2% bops", "not positive"),
        ("2", "does not say of what"),
        (4, "budget is 4; it has a unit"),
        ({"relative_bops": -1.0}, "it is a positive number"),
    ],
)
def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_read_or_learned(budget, message):
    def never():
        raise AssertionError("batches were read")
        yield

    compressor = handle()
    with pytest.raises(ValueError, match=message):
        bb.posttrain(compressor, never(), config=bb.PosttrainConfig(loss="output"), budget=budget)
    assert not compressor.attachment.calibrated


def random_gates(compressor, seed):
    generator = torch.Generator().manual_seed(seed)
    for quantizer in compressor.attachment.quantizers.values():
        quantizer.gates.logits.data = 3 * torch.randn(quantizer.gates.logits.shape, generator=generator)


def float_loss(compressor, seen=None):
    """The squared error to the float network, as a function of a batch's index."""
    wanted = bb.Compressor(copy.deepcopy(compressor.model)).detach()(X).detach()

    def loss(index):
        if seen is not None:
            seen.append(compressor.cost().relative_bops)
        return F.mse_loss(compressor.model(X), wanted)

    return loss


def state_of(compressor):
    return {name: value.clone() for name, value in compressor.model.state_dict().items()}


def test_the_plan_with_the_least_loss_is_chosen_and_the_network_stays():
    compressor = handle((2, 4, 8, 16))
    compressor.calibrate([X], "mse")
    budget, seen = bb.Budget(relative_bops=1.8), []
    points = BudgetPoints(compressor, budget, float_loss(compressor, seen), [X])
    found = []
    for seed in range(4):
        random_gates(compressor, seed)
        before = state_of(compressor)
        points.add(float(seed))
        assert all(torch.equal(value, before[name]) for name, value in compressor.model.state_dict().items())
        for most_bits in (None, 8):
            plan, other = project(compressor.attachment, budget, most_bits=most_bits), handle((2, 4, 8, 16))
            other.calibrate([X], "mse")
            loss = float_loss(other)
            other.fix(plan)
            found.append((loss(0).item(), float(seed), plan))
    best = min(found, key=lambda one: one[0])
    point = points.settle(None, lambda model: 7.0)
    assert (point.mu, point.plan, point.score) == (*best[1:], 7.0)
    assert all(torch.equal(value, before[name]) for name, value in compressor.model.state_dict().items())
    assert all(cost <= 1.8 for cost in seen)


def test_widths_above_8_bits_stay_where_they_are_worth_it():
    compressor = handle((4, 16))
    compressor.calibrate([X], "minmax")
    points = BudgetPoints(compressor, bb.Budget(relative_bops=25.0), float_loss(compressor), [X])
    points.add(0.5)
    bits = points.settle(None, None).plan.bits
    assert {bits[name] for name, q in compressor.attachment.quantizers.items() if q.mode == "learning"} == {16}


def settled(change):
    """The loss of the chosen point, that with fitted ranges, and that with ranges that learning changed by a factor."""
    compressor = handle((2, 4, 8))
    compressor.calibrate([X], "minmax")
    loss, losses = float_loss(compressor), []
    points = BudgetPoints(compressor, bb.Budget(relative_bops=1.0), loss, [X])
    points.add(0.5)

    def learn_ranges():
        losses.append(loss(0).item())
        for quantizer in compressor.attachment.quantizers.values():
            quantizer.log_beta.data += change
        losses.append(loss(0).item())

    before = state_of(compressor)
    point = points.settle(None if change is None else learn_ranges, None)
    assert all(torch.equal(value, before[name]) for name, value in compressor.model.state_dict().items())
    bb.restore(compressor, point)
    chosen = loss(0).item()
    return chosen, min(fitted_losses(compressor, loss)), losses


def fitted_losses(compressor, loss):
    """With all ranges of least squared error, and with those of tensors of 8 bits or more from min/max."""
    quantizers, losses = compressor.attachment.quantizers, []
    compressor.calibrate([X], "mse")
    losses.append(loss(0).item())
    fitted = {name: quantizer.log_beta.detach().clone() for name, quantizer in quantizers.items()}
    compressor.calibrate([X], "minmax")
    for name, quantizer in quantizers.items():
        if compressor.plan().bits[name] < 8:
            quantizer.log_beta.data.copy_(fitted[name])
    losses.append(loss(0).item())
    return losses


def test_ranges_are_the_best_of_own_fitted_and_learned_ones():
    """Ranges for 8 bits are too wide for 2 and 4; what learning makes of fitted ones may be better or worse."""
    chosen, fitted, _ = settled(None)
    assert chosen == pytest.approx(fitted)
    better = []
    for change in (5.0, -0.1, 0.1):
        chosen, fitted, (before, after) = settled(change)
        assert before == pytest.approx(fitted)
        assert chosen == pytest.approx(min(before, after))
        better.append(after < before)
    assert any(better)
    assert not better[0]


@pytest.mark.parametrize(("narrow", "wide"), [(0.5, 0.5), (1.0, 1.0), (1.0, 2.0)])
def test_min_max_is_for_8_bits_and_more(narrow, wide, monkeypatch):
    """Ranges start at 0.5, have 1 by least squares and 2 by min/max; the loss says which of them it wants."""
    compressor = handle((2, 4, 8))
    compressor.calibrate([X])
    quantizers = compressor.attachment.quantizers

    def set_all(value):
        for quantizer in quantizers.values():
            quantizer.log_beta.data.fill_(value)

    def loss(index):
        wanted = {name: wide if quantizer.effective_bits() >= 8 else narrow for name, quantizer in quantizers.items()}
        return sum((quantizer.log_beta - wanted[name]) ** 2 for name, quantizer in quantizers.items())

    set_all(0.5)
    monkeypatch.setattr(compressor, "calibrate", lambda batches, method: set_all({"mse": 1.0, "minmax": 2.0}[method]))
    points = BudgetPoints(compressor, bb.Budget(relative_bops=3.0), loss, [X])
    points.add(0.5)
    point = points.settle(None, None)
    assert {4, 8} <= set(point.plan.bits.values())
    found = {(point.plan.bits[name] >= 8, *own.log_beta) for name, own in point.ranges.items()}
    assert found == {(True, wide), (False, narrow)}
