"""Adaptive rounding: loss and gradient by hand, the best codes by exhaustive search, and every kind of layer."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig, adaround, correct_biases
from bayesbits.baselines.adaround_rounding import RoundingGrid
from bayesbits.baselines.layerwise import float_copy
from bayesbits.baselines.reconstruction_run import write_codes
from bayesbits.nn.layer import AttachedLayer
from tests.graph.networks import Tied, randomize
from tests.graph.products import InputsFirst, Padded, Standardized
from tests.networks import dropping

FLOAT_INPUT = bb.Spec(input_bits=32, residual_bits=None, prune=False)
QUICK = AdaRoundConfig(steps=60, batch_size=8, lr=0.05)


def fixed(
    model: nn.Module, x: Tensor, weights: int = 3, activations: int = 8, spec: bb.Spec = FLOAT_INPUT
) -> bb.Compressor:
    compressor = bb.attach(model.eval(), x, spec)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, weights, activations, input_bits=spec.input_bits))
    return compressor


def codes(compressor: bb.Compressor, name: str) -> Tensor:
    layer = compressor.model.get_submodule(name)
    assert isinstance(layer, AttachedLayer)
    return layer.folded_codes()


def test_one_step_is_adams_step_on_that_gradient():
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    model[0].weight.data.fill_(0.98)  # its fraction is 0.49: nearest is down
    compressor = fixed(model, torch.tensor([[1.0], [3.0]]), 2, 32)
    compressor.attachment.quantizers["0.weight"].set_range(3.0)
    # The float network wants 1.2 x, so the gradient is negative; Adam's first step moves V up by the rate: h > 0.5. It
    # also makes the logarithm of the range larger by its own rate, and so the step of 2.
    reference = copy.deepcopy(float_copy(compressor))
    reference.get_submodule("0").weight.data.fill_(1.2)
    x = [torch.tensor([[1.0], [3.0]])]
    report = adaround(compressor, x, AdaRoundConfig(steps=1, batch_size=2, lr=0.2), reference=reference)
    assert codes(compressor, "0").item() == 1
    assert model[0].weight.item() == pytest.approx(2 * math.exp(1e-3))
    assert compressor.attachment.quantizers["0.weight"].beta.item() == pytest.approx(3 * math.exp(1e-3))
    assert report.units[0].moved == 1


def pairs(seed: int) -> tuple[bb.Compressor, Tensor]:
    """One layer of six weights on three pairs of inputs that go together, so that errors of one sign add up.

    In each pair one weight has to go up and the other down, while the nearest codes of both lie on the same side.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 1))
    x = torch.randn(256, 3).repeat_interleave(2, dim=1) + 0.5 * torch.randn(256, 6)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.45, 0.25, 0.42, 0.2, -0.75, -0.55]]))
    compressor = fixed(model, x, 2, 32)
    compressor.attachment.quantizers["0.weight"].set_range(1.5)  # steps of 1
    return compressor, x


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_better_codes_than_the_nearest_as_exhaustive_search_does(seed):
    compressor, x = pairs(seed)
    wanted = compressor.model[0].weight.detach() @ x.T
    below = torch.tensor([[0.0, 0, 0, 0, -1, -1]])

    def error(chosen: Tensor) -> float:
        return (chosen @ x.T - wanted).square().mean().item()

    candidates = [below + torch.tensor([up]) for up in itertools.product((0.0, 1.0), repeat=6)]
    nearest, best = codes(compressor, "0"), min(candidates, key=error)
    assert nearest.tolist() == [[0, 0, 0, 0, -1, -1]]
    assert error(best) < 0.5 * error(nearest.float())
    # Six weights are few beside their error: their regularizer needs more weight than that of a layer of thousands.
    report = adaround(
        compressor, [x[:128], x[128:]], AdaRoundConfig(steps=400, batch_size=64, range_lr=0.0, bias_lr=0.0)
    )
    assert torch.equal(codes(compressor, "0").float(), best)
    assert report.units[0].nearest_error == pytest.approx(error(nearest.float()), rel=1e-4)
    assert report.units[0].error == pytest.approx(error(best), rel=1e-4)
    assert report.units[0].moved == 3


def learn_range(range_lr: float) -> tuple[nn.Linear, bb.Compressor, float]:
    """Weights of 1.3 and -1.3 with steps of 1, whose codes are 1 and -1 and cannot be better."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 2, bias=False)), torch.randn(64, 6)
    with torch.no_grad():
        model[0].weight.copy_(1.3 * torch.sign(torch.randn(2, 6)))
    compressor = fixed(model, x, 2, 32, FLOAT_INPUT)
    compressor.attachment.quantizers["0.weight"].set_range(1.5)
    report = adaround(compressor, [x], AdaRoundConfig(steps=100, batch_size=32, range_lr=range_lr))
    return model[0], compressor, report.units[0].error / report.units[0].nearest_error


def test_a_step_grows_where_all_weights_of_a_tensor_were_rounded_down():
    layer, compressor, part = learn_range(1e-2)
    assert layer.effective_weight().abs().mean().item() == pytest.approx(1.3, abs=0.02)
    assert compressor.attachment.quantizers["0.weight"].beta.item() == pytest.approx(1.5 * 1.3, abs=0.03)
    assert part < 0.01


def test_a_step_stays_without_a_learning_rate():
    layer, compressor, part = learn_range(0.0)
    assert layer.effective_weight().abs().unique().tolist() == pytest.approx([1.0])
    assert compressor.attachment.quantizers["0.weight"].beta.item() == pytest.approx(1.5)
    assert part == 1.0


@pytest.mark.parametrize(("with_norm", "bias_lr"), [(False, 1e-2), (True, 1e-2), (True, 0.0)])
def test_the_bias_takes_away_what_rounding_adds_to_the_mean(with_norm, bias_lr):
    torch.manual_seed(0)
    layer, norm = nn.Linear(6, 3), nn.BatchNorm1d(3, eps=0.0)
    with torch.no_grad():
        layer.weight.fill_(1.3)  # all are rounded down, and their inputs have a mean
        norm.running_var.fill_(4.0)
    x = torch.randn(64, 6) + 2
    model = nn.Sequential(layer, norm) if with_norm else nn.Sequential(layer)
    compressor = fixed(model, x, 2, 32)
    compressor.attachment.quantizers["0.weight"].set_range(1.5 / 2 if with_norm else 1.5)  # the factor of the norm
    with torch.no_grad():
        model[0].weight[2] = 0.0  # the last channel of the plan is another one than that of the float network
    wanted = float_copy(compressor)(x).mean(0)
    before = model[-1].bias.detach().clone()
    adaround(compressor, [x], AdaRoundConfig(steps=300, batch_size=32, range_lr=0.0, bias_lr=bias_lr))
    apart = (model(x).mean(0) - wanted).abs()[:2]
    moved = (model[-1].bias - before)[:2]
    if bias_lr:
        assert (apart < 0.05).all()
        torch.testing.assert_close(moved, torch.full((2,), 6 * 2 * 0.3 / (2 if with_norm else 1)), rtol=0.1, atol=0.0)
    else:
        assert (apart > 1).all()
        assert (moved == 0).all()


def test_the_bias_of_a_removed_channel_stays():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.randn(64, 6) + 1
    compressor = bb.attach(model, x[:1], bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([x])
    compressor.fix(dropping(compressor.topology, 0.5, 4))
    gate = compressor.attachment.gate_of("0").values()
    assert set(gate.tolist()) == {0.0, 1.0}
    before = model[0].bias.detach().clone()
    report = adaround(compressor, [x], AdaRoundConfig(steps=300, batch_size=32, bias_lr=1e-2))
    assert report.units[0].error < report.units[0].nearest_error
    assert ((model[0].bias != before) == (gate > 0)).all()


def test_a_bias_that_two_layers_add_stays():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4)).eval(), torch.randn(64, 6) + 1
    model[2].bias = model[0].bias
    compressor = fixed(model, x)
    before = model[0].bias.detach().clone()
    report = adaround(compressor, [x], AdaRoundConfig(steps=100, batch_size=32, bias_lr=1e-2))
    assert any(unit.error < unit.nearest_error for unit in report.units)
    assert torch.equal(model[0].bias, before)


class Kinds(nn.Module):
    """Every kind of layer: batch norm, depthwise, groups, transposed with and without, two calls, tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.filter, self.filter_norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 1, groups=2)
        self.up, self.up_norm = nn.ConvTranspose2d(8, 4, 3, stride=2), nn.BatchNorm2d(4)
        self.grouped_up, self.grouped_up_norm = nn.ConvTranspose2d(4, 4, 2, groups=2), nn.BatchNorm2d(4)
        self.twice = nn.Conv2d(4, 4, 3, stride=2)
        self.tokens = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)), inplace=True)
        x = F.relu6(self.filter_norm(self.filter(x)))
        x = F.relu_(self.up_norm(self.up(F.silu(self.grouped(x)), output_size=[14, 14])))
        x = F.relu(self.grouped_up_norm(self.grouped_up(x)))
        x = F.relu_(self.twice(F.relu_(self.twice(x))))  # images of two sizes
        return self.head(F.gelu(self.tokens(x.flatten(2).transpose(1, 2)))).mean(1)


@pytest.mark.parametrize("per_channel", [False, True])
def test_every_kind_of_layer_is_rounded_to_its_learned_codes(per_channel):
    torch.manual_seed(0)
    model, x = randomize(Kinds()), torch.randn(16, 3, 6, 6)
    with torch.no_grad():
        model.stem_norm.weight[2] = 0.0  # a channel without a factor
    spec = bb.Spec(residual_bits=None, prune=False, per_channel_weights=per_channel)
    compressor = fixed(model, x, 3, 8, spec)
    before = copy.deepcopy(model.state_dict())
    nearest = {layer.name: codes(compressor, layer.name) for layer in compressor.topology.layers}
    report = adaround(compressor, [x[:8], x[8:]], QUICK)
    assert [layer.name for layer in report.units] == [layer.name for layer in compressor.topology.layers]
    assert not report.skipped
    assert report.plan == compressor.plan()
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    weights = {layer.parameter for layer in compressor.topology.layers}
    ranges = {key for key in changed if key.endswith("weight.log_beta")}
    assert ranges
    biases = {key for key in changed if key.endswith(".bias")}
    assert biases <= {
        "stem_norm.bias", "filter_norm.bias", "grouped.bias", "up_norm.bias", "grouped_up.bias", "twice.bias",
        "tokens.bias", "head.bias",
    }  # fmt: skip
    assert biases
    assert changed - ranges - biases <= weights
    for layer in report.units:
        after = codes(compressor, layer.name)
        assert (after - nearest[layer.name]).abs().max() <= 1
        assert int((after != nearest[layer.name]).sum()) == layer.moved
        assert layer.error <= layer.nearest_error
        if layer.moved:  # at the center of the code: rounding changes nothing any more
            module = model.get_submodule(layer.name)
            torch.testing.assert_close(module.effective_weight(), module.weight, rtol=1e-5, atol=1e-6)
    assert sum(layer.error for layer in report.units) < 0.97 * sum(layer.nearest_error for layer in report.units)


def logit_error(model: nn.Module, reference: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return (model(x) - reference(x)).square().mean().item()


@pytest.mark.parametrize("choice", [{}, {"after_activation": False}, {"asymmetric": False}])
def test_the_network_comes_closer_to_the_float_one_on_other_data(choice):
    torch.manual_seed(0)
    model = randomize(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)))
    mixing = torch.randn(3, 8)
    x, unseen = torch.randn(128, 3) @ mixing, torch.randn(128, 3) @ mixing
    reference = copy.deepcopy(model)
    compressor = fixed(model, x)
    nearest = logit_error(model, reference, unseen)
    adaround(compressor, [x], AdaRoundConfig(steps=300, **choice))
    rounded = logit_error(model, reference, unseen)
    assert rounded < 0.6 * nearest
    correct_biases(compressor, [x], reference=reference)
    assert logit_error(model, reference, unseen) < nearest


def test_errors_are_measured_behind_the_function():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(64, 4)
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([-100.0] * 4 + [0.0] * 4))  # half of the channels never pass the ReLU
    behind = adaround(fixed(copy.deepcopy(model), x), [x], QUICK).units[0]
    before = adaround(fixed(copy.deepcopy(model), x), [x], replace(QUICK, after_activation=False)).units[0]
    assert behind.nearest_error < 0.6 * before.nearest_error


def test_pruned_channels_and_other_widths_are_left_alone():
    torch.manual_seed(0)
    model = randomize(
        nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1)
        )
    ).eval()
    x = torch.randn(16, 3, 6, 6)
    compressor = bb.attach(model, x, bb.Spec())
    compressor.calibrate([x])
    plan = dropping(compressor.topology, 0.5, 3)
    compressor.fix(bb.Plan({**plan.bits, "5.weight": 32}, plan.kept))
    gone = [channel for channel in range(8) if channel not in plan.kept["0"]]
    before, nearest = model[0].weight.detach().clone(), codes(compressor, "0")
    report = adaround(compressor, [x], QUICK)
    assert gone
    assert torch.equal(codes(compressor, "0")[gone], nearest[gone])
    assert not torch.equal(model[0].weight, before)
    assert [(entry.name, entry.reason) for entry in report.skipped] == [
        ("5", "its weight has 32 bits, where rounding does not matter")
    ]
    assert report.plan == compressor.plan()
    assert "5 is left as it was" in str(report)


def test_tied_weights_are_left_alone():
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.hidden, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.hidden(self.table(x))))

    report = adaround(fixed(Tied(), torch.randn(16, 4)), [torch.randn(16, 4)], QUICK)
    assert [entry.name for entry in report.skipped] == ["first", "second"]
    assert "tied" in report.skipped[0].reason
    tokens = torch.randint(5, (16, 3))
    report = adaround(fixed(Embedded(), tokens), [tokens], QUICK)
    assert [entry.name for entry in report.skipped] == ["head"]
    assert [layer.name for layer in report.units] == ["hidden"]


def test_networks_that_cannot_be_exported_are_rounded_too():
    class Unreadable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.second(F.relu(x) if float(x.sum()) < 1e9 else x)

    torch.manual_seed(0)
    x = torch.randn(32, 4)
    with pytest.warns(UserWarning, match=r"torch.export cannot take it .* read by a run with hooks"):
        compressor = fixed(Unreadable(), x)
    report = adaround(compressor, [x], QUICK)
    assert [layer.name for layer in report.units] == ["first", "second"]


def test_results_are_repeatable_and_reported_as_they_come():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(32, 4)
    results = []
    calls: list[tuple[str, int, int]] = []
    for _ in range(2):
        compressor = fixed(copy.deepcopy(model), x)
        adaround(compressor, [x], QUICK, progress=lambda *call: calls.append(call))
        results.append([codes(compressor, "0"), codes(compressor, "2")])
        assert not any(parameter.grad is not None for parameter in compressor.model.parameters())
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert calls == [("0", 1, 2), ("2", 2, 2)] * 2


def test_a_failure_leaves_the_weights_as_they_were():
    compressor, x = pairs(0)
    weight = compressor.model[0].weight
    before = weight.detach().clone()

    def stop(name: str, number: int, count: int) -> None:
        assert not torch.equal(weight, before)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adaround(compressor, [x], AdaRoundConfig(steps=400), progress=stop)
    assert torch.equal(weight, before)


def test_clear_errors():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(16, 3)
    compressor = bb.attach(model, x, FLOAT_INPUT)
    compressor.calibrate([x])
    with pytest.raises(ValueError, match=r"adaptive rounding works on a final plan.*compressor\.fix"):
        adaround(compressor, [x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8, input_bits=32))
    with pytest.raises(ValueError, match="training mode"):
        adaround(compressor, [x])
    model.eval()
    with pytest.raises(ValueError, match="at least 32 examples, and the batches have 16"):
        adaround(compressor, [x])
    with pytest.raises(ValueError, match="all the same"):
        adaround(compressor, [torch.ones(16, 3)], QUICK)
    with pytest.raises(ValueError, match="not finite"):
        adaround(compressor, [x / 0], QUICK)
    compressor.attachment.quantizers["0.weight"].fix(16)
    grid = RoundingGrid.of(model[0])
    up = torch.ones_like(grid.fraction)
    model.half()
    with pytest.raises(RuntimeError, match=r"0: a weight in torch\.float16 does not hold"):
        write_codes(model[0], grid.weight(up), grid.codes(up), "0")


def test_deploying_works_unchanged():
    torch.manual_seed(0)
    model = randomize(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(1))
    )
    x = torch.randn(16, 3, 6, 6)
    reference = copy.deepcopy(model)
    compressor = fixed(model, x, 3, 8, bb.Spec(prune=False))
    report = adaround(compressor, [x], QUICK)
    correct_biases(compressor, [x], reference=reference)
    assert sum(layer.moved for layer in report.units) > 0
    small = bb.deploy(compressor)
    with torch.no_grad():
        wanted = model(x)
        assert (small(x) - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_a_weight_that_a_function_multiplies_is_rounded_and_a_computed_one_is_skipped():
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(Padded(2, 4, 2), nn.ReLU(), InputsFirst(5, 3), nn.ReLU(), Standardized(4, 3, 2)),
        (torch.randn(32, 2, 5, 5)),
    )
    compressor = fixed(model, x, weights=3)
    report = adaround(compressor, [x], AdaRoundConfig(steps=400))
    assert [layer.name for layer in report.units] == ["0", "2"]
    # By exhaustive search no codes of the second layer are more than 3% better than the nearest: it may keep those.
    assert report.units[0].moved > 0
    assert report.units[0].error < report.units[0].nearest_error
    assert report.units[1].error <= report.units[1].nearest_error
    assert [(layer.name, layer.reason) for layer in report.skipped] == [
        ("4", "its weight is computed from parameters, so that no codes can be written into it")
    ]


def test_rounding_of_filters_comes_close_to_the_best_of_all_whatever_their_size():
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 16, 3, padding=1, groups=16)
    with torch.no_grad():
        conv.weight *= torch.logspace(-1, 1.3, 16).reshape(-1, 1, 1, 1)
        conv.weight -= conv.weight.mean((2, 3), keepdim=True)  # one weight rounded alone shifts the output by far
        conv.bias.fill_(3.0)
    x = 2 + 3 * torch.rand(64, 16, 8, 8)
    wanted = F.relu6(conv(x)).detach().flatten(2)
    compressor = bb.attach(nn.Sequential(conv, nn.ReLU6()).eval(), x, bb.Spec(prune=False, per_channel_weights=True))
    compressor.fix(bb.baselines.uniform(compressor, [x], 4, 8))
    layer = compressor.model[0]
    grid, quantized = RoundingGrid.of(layer), layer.parts.input(x).detach()
    rows = F.unfold(quantized, 3, padding=1).reshape(64, 16, 9, -1)
    up = torch.tensor(list(itertools.product((0.0, 1.0), repeat=9)))
    best = 0.0
    for channel in range(16):
        codes = torch.clamp(grid.below[channel].flatten() + up, *grid.bounds) * grid.step[channel].flatten()
        outputs = F.relu6(torch.einsum("nkp,ck->cnp", rows[:, channel], codes) + layer.bias[channel].detach())
        best += (outputs - wanted[:, channel]).square().mean((1, 2)).min().item()
    (learned,) = adaround(compressor, [x], AdaRoundConfig(steps=400)).units
    assert learned.nearest_error - learned.error > 0.9 * (learned.nearest_error - best)
