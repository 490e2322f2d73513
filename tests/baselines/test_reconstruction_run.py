"""From unit to unit: what is restored after a failure, and what is kept where nothing was won."""

import copy

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig, adaround, correct_biases
from bayesbits.baselines.layerwise import float_copy
from bayesbits.baselines.reconstruction_run import (
    Settings,
    layer_unit,
    obstacles,
    own_biases,
    reconstruct_units,
    skipped_layers,
)

IMAGES = torch.randn(16, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def prepared() -> tuple[bb.Compressor, torch.Tensor]:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(64, 4)
    compressor = bb.attach(model, x, bb.Spec(prune=False))
    compressor.fix(bb.baselines.uniform(compressor, [x], 3, 3, method="mse"))
    return compressor, x


def run(compressor: bb.Compressor, x: torch.Tensor, lr: float = 0.05, **options):
    biases = own_biases(compressor)
    units = [layer_unit(compressor, layer, None, biases.get(layer.name)) for layer in compressor.topology.layers]
    settings = Settings(AdaRoundConfig(steps=40, batch_size=8, lr=lr, range_lr=0.01), drop=0.5, activation_ranges=True)
    return reconstruct_units(
        compressor, units, [x[:32], x[32:]], float_copy(compressor), settings, options.get("progress")
    )


def test_weights_and_ranges_are_restored_where_it_fails():
    compressor, x = prepared()
    before = copy.deepcopy(compressor.model.state_dict())

    def stop(name: str, number: int, count: int) -> None:
        if number == count:
            changed = [
                key for key, value in compressor.model.state_dict().items() if not torch.equal(value, before[key])
            ]
            assert len(changed) > 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(compressor, x, progress=stop)
    assert all(torch.equal(value, before[key]) for key, value in compressor.model.state_dict().items())


def test_a_unit_that_gets_no_better_stays_as_it_was():
    compressor, x = prepared()
    before = copy.deepcopy(compressor.model.state_dict())
    units = run(compressor, x, lr=1e3)  # rounds at random
    worse = [unit for unit in units if unit.moved == 0]
    assert worse
    assert all(unit.error == unit.nearest_error for unit in worse)
    for unit in worse:
        assert torch.equal(compressor.model.state_dict()[f"{unit.name}.weight"], before[f"{unit.name}.weight"])
    if len(worse) == 2:
        assert all(torch.equal(value, before[key]) for key, value in compressor.model.state_dict().items())


def test_the_input_of_the_network_keeps_its_range():
    compressor, x = prepared()
    fixed = compressor.attachment.quantizers["0.input"].log_beta.clone()
    run(compressor, x)
    assert torch.equal(compressor.attachment.quantizers["0.input"].log_beta, fixed)


def test_obstacles_and_the_layers_that_they_skip():
    compressor, _ = prepared()
    plan = compressor.plan()
    compressor.fix(bb.Plan({**plan.bits, "2.weight": 32}))
    reasons = obstacles(compressor, None)
    assert reasons["0"] is None
    assert "32 bits" in str(reasons["2"])
    assert [(layer.name, layer.reason) for layer in skipped_layers(reasons)] == [("2", reasons["2"])]


def test_biases_that_learn_are_those_that_one_layer_alone_adds():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    model = nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)).eval()
    model[3].bias = model[2].bias
    model.append(nn.Linear(8, 2))
    compressor = bb.attach(model, torch.randn(4, 8), bb.Spec(prune=False))
    biases = own_biases(compressor)
    assert list(biases) == ["0", "5"]
    assert biases["0"] is norm.bias  # the layer's own is in front of the batch norm's scale
    assert biases["5"] is model[5].bias


def test_a_weight_that_another_module_owns_is_left_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)).eval()
    model[0].other = nn.Module()
    model[0].other.weight = model[0].weight
    compressor = bb.attach(model, torch.randn(4, 8), bb.Spec(prune=False))
    compressor.calibrate([torch.randn(16, 8)])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8))
    reasons = obstacles(compressor, None)
    assert "tied" in str(reasons["0"])
    assert reasons["1"] is reasons["2"] is None


def test_a_gate_behind_an_instance_norm_multiplies_the_output_of_its_layer_as_the_network_does():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 2, 1)).eval(), IMAGES
    nn.init.uniform_(model[1].bias, 0.5, 1.0)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    compressor.fix(bb.Plan(bb.Plan.uniform(compressor.topology, 3, 8).bits, {"0": (0, 2, 3)}))
    layer = compressor.topology.layer("0")
    unit = layer_unit(compressor, layer, None, own_biases(compressor)[layer.name])
    assert unit.scale.tolist() == [1.0, 0.0, 1.0, 1.0]
    assert unit.shift is None
    with torch.no_grad():
        emitted = model[0](x)
        assert torch.equal(unit.finish(emitted), emitted)
    before = float_copy(compressor)
    adaround(compressor, [x], AdaRoundConfig(steps=20, batch_size=8))
    correct_biases(compressor, [x], reference=before)
    small = bb.deploy(compressor)
    with torch.no_grad():
        wanted = model(x)
        torch.testing.assert_close(small(x), wanted, rtol=1e-3, atol=1e-3)
