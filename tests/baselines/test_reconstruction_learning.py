"""Learning a unit: what is drawn and dropped, the error over all examples, and that only what learns changes."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig
from bayesbits.baselines.adaround_rounding import RoundingGrid
from bayesbits.baselines.reconstruction_learning import _draw, channel_curvatures, learn, mean_error, mixed
from bayesbits.baselines.reconstruction_run import layer_unit, own_biases
from bayesbits.baselines.reconstruction_units import Examples, LayerUnit


def prepared() -> tuple[bb.Compressor, LayerUnit, Examples]:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 4)).eval(), torch.randn(64, 6)
    compressor = bb.attach(model, x, bb.Spec(prune=False, input_bits="learned"))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 2, 3, input_bits=3))
    layer = compressor.topology.layers[0]
    unit = layer_unit(compressor, layer, None, own_biases(compressor).get(layer.name))
    with torch.no_grad():
        targets = nn.functional.linear(x, model[0].weight, model[0].bias)
    return compressor, unit, Examples([x.unsqueeze(1)], [x.unsqueeze(1)], targets, as_rows=True)


def test_the_mean_error_does_not_depend_on_the_batches():
    _, unit, part = prepared()
    weight = unit.module.effective_weight().detach()
    found = [mean_error(unit, [weight], [part], size).item() for size in (1, 3, 100)]
    whole = unit.error(unit.output(part.inputs, [weight], part), part.targets, part).item()
    assert found == pytest.approx([whole] * 3, rel=1e-5)


def test_only_the_rounding_and_the_given_ranges_learn():
    compressor, unit, part = prepared()
    (quantizer,) = unit.quantizers
    before = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    grid = RoundingGrid.of(unit.module)
    config = AdaRoundConfig(steps=30, batch_size=8, lr=0.05, range_lr=0.01)
    state = torch.get_rng_state()
    learned = learn(unit, [grid], [quantizer.log_beta], [part], config, drop=0.5)
    assert torch.equal(torch.get_rng_state(), state)
    changed = {name for name, value in compressor.model.state_dict().items() if not torch.equal(value, before[name])}
    assert len(changed) == 1
    assert changed.pop().endswith("log_beta")
    assert 0 < (quantizer.log_beta - before_range(before)).abs().item() < 0.31  # 30 steps of 0.01 at most
    assert torch.equal(learned.ranges[0], quantizer.log_beta)
    assert set(learned.up[0].unique().tolist()) == {0.0, 1.0}
    assert all(parameter.grad is None for parameter in compressor.model.parameters())
    assert not quantizer._forward_hooks


def before_range(state: dict) -> torch.Tensor:
    return next(value for name, value in state.items() if name.endswith("log_beta") and "input" in name)


def test_without_ranges_and_dropping_the_network_stays_as_it_is():
    compressor, unit, part = prepared()
    before = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    learn(unit, [RoundingGrid.of(unit.module)], [], [part], AdaRoundConfig(steps=5))
    assert all(torch.equal(value, before[name]) for name, value in compressor.model.state_dict().items())


def test_elements_are_dropped_with_their_probability():
    torch.manual_seed(0)
    found = mixed(torch.ones(100_000), torch.zeros(100_000), 0.3)
    assert found.mean().item() == pytest.approx(0.7, abs=0.01)
    indices = torch.arange(3)
    assert mixed(indices, indices + 1, 0.9) is indices


def test_examples_of_all_parts_are_drawn_by_their_size():
    small, large = (Examples([torch.zeros(size, 1)], [], torch.zeros(size, 1)) for size in (10, 90))
    parts, rows = _draw([small, large], AdaRoundConfig(steps=1000, batch_size=4))
    assert sum(parts) / 1000 == pytest.approx(0.9, abs=0.04)
    assert [one.shape for one in rows] == [(1000, 4), (1000, 4)]
    assert [one.min().item() for one in rows] == [0, 0]
    assert [one.max().item() for one in rows] == [9, 89]


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_curvature_is_that_of_the_squared_inputs_and_steps(scale):
    torch.manual_seed(0)
    x = scale * torch.randn(64, 6)
    model = nn.Sequential(nn.Linear(6, 64)).eval()
    with torch.no_grad():
        model[0].weight[32:] *= 10
        model[0].weight[5] = 0
    compressor = bb.attach(model, x, bb.Spec(prune=False, per_channel_weights=True))
    compressor.fix(bb.baselines.uniform(compressor, [x], 3, 8))
    layer = compressor.topology.layers[0]
    unit = layer_unit(compressor, layer, None, own_biases(compressor).get(layer.name))
    grid, part = RoundingGrid.of(unit.module), Examples([x.unsqueeze(1)], [], x @ model[0].weight.detach().T, True)
    with torch.no_grad():
        grid.step[5] = 0.0  # no output depends on it
    (found,) = channel_curvatures(unit, [grid], part, AdaRoundConfig())
    wanted = x.square().mean() * grid.step.square()
    assert found.shape == grid.step.shape
    alive = torch.arange(64) != 5
    ratio = (found / wanted)[alive]
    assert 0.9 < ratio.mean().item() < 1.1  # an estimate from a few draws
    assert ratio.min().item() > 0.3
    assert ratio.max().item() < 3
    assert found[5].item() == pytest.approx(1e-3 * found.mean().item(), rel=0.01)
