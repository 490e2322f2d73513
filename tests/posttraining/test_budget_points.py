"""Post-training within a budget: one more point, within it, and the best on the examples."""

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


def test_an_unreachable_budget_is_refused_before_anything_is_learned():
    compressor = handle()
    with pytest.raises(bb.BudgetError, match="cannot be reached"):
        bb.posttrain(compressor, X.split(32), config=bb.PosttrainConfig(loss="output"), budget="0.1% bops")
    with pytest.raises(ValueError, match="budget is 4; it has a unit"):
        bb.posttrain(compressor, X.split(32), config=bb.PosttrainConfig(loss="output"), budget=4)
    learning = [entry.gates for entry in compressor.attachment.quantizers.values() if entry.mode == "learning"]
    assert {value for gates in learning for value in gates.logits.tolist()} == {6.0}


def test_the_plan_with_the_least_loss_is_chosen_and_the_network_stays():
    compressor = handle()
    compressor.calibrate([X])
    budget, targets = bb.Budget(relative_bops=1.0), compressor.model(X).argmax(1)
    seen = []

    def loss(index):
        seen.append(compressor.cost().relative_bops)
        return F.cross_entropy(compressor.model(X), targets)

    points = BudgetPoints(compressor, budget, loss, batches=1)
    losses, plans = [], []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        for quantizer in compressor.attachment.quantizers.values():
            quantizer.gates.logits.data = 3 * torch.randn(quantizer.gates.logits.shape, generator=generator)
        before = compressor.plan()
        points.add(float(seed), None)
        assert compressor.plan() == before
        plans.append(project(compressor.attachment, budget))
        other = handle()
        other.calibrate([X])
        other.fix(plans[-1])
        losses.append(F.cross_entropy(other.model(X), targets).item())
    best = min(range(3), key=losses.__getitem__)
    assert (points.best.mu, points.best.plan) == (float(best), plans[best])
    assert all(cost <= 1.0 for cost in seen)
