"""Block reconstruction: closer to float than nearest rounding and AdaRound, on mixed plans, deployed and verified."""

import copy
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig, ReconstructionConfig, adaround, reconstruct, uniform
from tests.networks import dropping

LEARNED = ("0", "3.a", "3.b", "4.b", "7")
QUICK = ReconstructionConfig(steps=60, batch_size=16, lr=0.05)


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.b, self.nb = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))) + x)


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    patterns = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(7))
    return patterns[labels] + 0.9 * torch.randn(count, 2, 6, 6, generator=generator), labels


@cache
def _trained() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Block(8), Block(8), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    x, y = images(256, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(25):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def fixed(weights: int, activations: int, **options) -> bb.Compressor:
    model = copy.deepcopy(_trained())
    x, _ = images(64, 2)
    compressor = bb.attach(model, x[:2], bb.Spec(prune=False, per_channel_weights=True, **options))
    compressor.fix(uniform(compressor, [x], weights, activations, method="mse"))
    return compressor


def logit_error(compressor: bb.Compressor) -> float:
    x, _ = images(256, 3)
    with torch.no_grad():
        return (compressor.model(x) - _trained()(x)).square().mean().item()


def batches() -> list[Tensor]:
    return list(images(64, 2)[0].split(32))


@pytest.mark.parametrize(("weights", "activations"), [(3, 8), (3, 3)])
def test_it_is_closer_to_float_than_nearest_rounding_on_other_data(weights, activations):
    compressor = fixed(weights, activations)
    nearest = logit_error(compressor)
    report = reconstruct(compressor, batches(), QUICK)
    assert [unit.name for unit in report.units] == ["0", "3", "4", "7"]
    assert report.units[1].layers == ("3.a", "3.b")
    assert all(unit.error <= unit.nearest_error for unit in report.units)
    assert logit_error(compressor) < 0.6 * nearest


def test_layers_alone_without_dropping_are_adaround():
    first, second = fixed(3, 8), fixed(3, 8)
    options = {"steps": 40, "batch_size": 16, "lr": 0.03, "range_lr": 0.0}
    rounded = adaround(first, batches(), AdaRoundConfig(**options))
    alone = reconstruct(second, batches(), ReconstructionConfig(**options, drop=0.0, blocks=False))
    assert alone.units == rounded.units
    ours, theirs = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_only_weights_ranges_and_biases_outside_of_blocks_change():
    compressor = fixed(3, 4)
    plan = compressor.plan()
    compressor.fix(bb.Plan({**plan.bits, "4.a.weight": 32}))
    before = copy.deepcopy(compressor.model.state_dict())
    report = reconstruct(compressor, batches(), QUICK)
    assert [entry.name for entry in report.skipped] == ["4.a"]
    changed = {name for name, value in compressor.model.state_dict().items() if not torch.equal(value, before[name])}
    weights = {name for name in changed if name.endswith("weight")}
    assert {"3.a.weight", "3.b.weight", "4.b.weight"} <= weights <= {f"{unit}.weight" for unit in LEARNED}
    biases = {name for name in changed if name.endswith("bias")}
    ranges = {name for name in changed - weights if "weight" in name}
    inputs = changed - weights - biases - ranges
    assert biases <= {"0.bias", "1.bias", "7.bias"}
    assert biases
    assert ranges
    assert inputs
    assert all(name.startswith("bayesbits.tensors.") for name in ranges | inputs)
    assert not [name for name in ranges if "4/a" in name or "4.a" in name]  # skipped
    assert not [name for name in changed if "gates" in name]
    assert report.plan == compressor.plan()


def test_mixed_widths_and_removed_channels_are_deployed_and_verified(tmp_path):
    model = copy.deepcopy(_trained())
    x, _ = images(64, 2)
    compressor = bb.attach(model, x[:2], bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([x], "mse", reference_bits=4)
    plan = dropping(compressor.topology, 0.5, 4)
    compressor.fix(bb.Plan({**plan.bits, "3.b.weight": 2, "4.a.weight": 8}, plan.kept))
    assert plan.kept
    name, kept = next(iter(plan.kept.items()))
    gone = [index for index in range(len(compressor.model.get_submodule(name).weight)) if index not in kept]
    codes = compressor.model.get_submodule(name).folded_codes()
    report = reconstruct(compressor, batches(), QUICK)
    assert sum(unit.moved for unit in report.units) > 0
    assert torch.equal(compressor.model.get_submodule(name).folded_codes()[gone], codes[gone])
    small = bb.deploy(compressor)
    path = tmp_path / "network.onnx"
    bb.export_onnx(small, x[:4], path)
    bb.verify(compressor, small, path, x[:32])


def test_the_same_call_gives_the_same_network():
    states = []
    for _ in range(2):
        compressor = fixed(3, 4)
        reconstruct(compressor, batches(), ReconstructionConfig(steps=10, batch_size=16))
        states.append(compressor.model.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("wrong", [{"drop": 1.0}, {"drop": -0.1}, {"range_lr": -1.0}, {"blocks": 1}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match=f"ReconstructionConfig.{next(iter(wrong))}"):
        ReconstructionConfig(**wrong)
