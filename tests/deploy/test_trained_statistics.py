"""Networks with the statistics of trained ones: nearly dead channels, large means, tiny variances, uneven padding.

Every layer computes in integers, and the file is proven equal, for ranges of tensors and of channels.
"""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bayesbits as bb
from tests.graph.products import KINDS, Products

CHANNELS = 8


class Block(nn.Module):
    """An inverted residual, as in EfficientNet-Lite: uneven padding in front of its depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(CHANNELS)
        self.pad = nn.ZeroPad2d((0, 1, 2, 1))
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, (4, 2), groups=CHANNELS, bias=False)
        self.norm2 = nn.BatchNorm2d(CHANNELS)
        self.project = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.norm3 = nn.BatchNorm2d(CHANNELS, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.norm1(self.expand(x)))
        y = F.relu6(self.norm2(self.depthwise(self.pad(y))))
        return x + self.norm3(self.project(y))


def give_trained_statistics(model: nn.Module, seed: int, smallest_gamma: float, spread: float) -> None:
    """Random weights of convolutions and batch norms, over many orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)

    def powers(low: float, high: float, size: int) -> Tensor:
        return 10 ** torch.empty(size).uniform_(low, high, generator=generator)

    def signs(size: int) -> Tensor:
        return torch.randint(0, 2, (size,), generator=generator) * 2.0 - 1

    low = torch.tensor(smallest_gamma).log10().item()
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and isinstance(module.weight, nn.Parameter):
            with torch.no_grad():
                rows = powers(-spread / 2, spread / 2, len(module.weight)).reshape(-1, 1, 1, 1)
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * rows)
        if isinstance(module, nn.BatchNorm2d):
            size = module.num_features
            with torch.no_grad():
                module.running_var.copy_(powers(-10, 1, size))
                module.running_mean.copy_(powers(-3, 1, size) * signs(size))
                module.weight.copy_(powers(low, 1, size) * signs(size))
                module.weight[0] = 0.0 if seed % 2 else smallest_gamma
                module.bias.copy_(torch.randn(size, generator=generator) * 2)
                # Batch norm brings the outputs of a trained network to ordinary sizes.
                ordinary = module.running_mean.abs() + module.running_var.sqrt()
                module.weight.div_((ordinary / (module.running_var + module.eps).sqrt()).clamp(min=1.0))


class Trained(nn.Module):
    """A stem, a block and a linear layer, with random statistics over many orders of magnitude."""

    def __init__(self, seed: int, smallest_gamma: float, spread: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.block = Block()
        self.head = nn.Linear(CHANNELS, 4)
        give_trained_statistics(self, seed, smallest_gamma, spread)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(F.relu6(self.norm(self.stem(x)))).mean((2, 3)))


def fixed(
    model: nn.Module, inputs: Tensor, per_channel: bool, weights: int, activations: int, drop: float = 0.0
) -> bb.Compressor:
    compressor = bb.attach(model.eval(), inputs[:2], bb.Spec(bits=(2, 4, 8), per_channel_weights=per_channel))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*all of its values are zero")
        compressor.calibrate([inputs])
    topology = compressor.topology
    removed = {channel for group in topology.removable_groups for channel in group.channels[: int(drop * group.size)]}
    compressor.fix(bb.Plan.uniform(topology, weights, activations, residual_bits=8).without(topology, removed))
    return compressor


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    smallest_gamma=st.sampled_from([1e-8, 1e-6, 1e-3]),
    spread=st.sampled_from([0.0, 3.0, 6.0]),
    per_channel=st.booleans(),
    widths=st.sampled_from([(8, 8), (4, 8), (2, 4)]),
    form=st.sampled_from(["fast", "compact"]),
)
@pytest.mark.check
def test_trained_statistics(seed, smallest_gamma, spread, per_channel, widths, form, tmp_path_factory):
    model, inputs = Trained(seed, smallest_gamma, spread), torch.rand(8, 3, 9, 9) * 2 - 1
    compressor = fixed(model, inputs, per_channel, *widths)
    small = bb.deploy(compressor)
    assert [layer.reason for layer in small.integer.layers] == [None] * 5
    path = tmp_path_factory.mktemp("trained") / "network.onnx"
    bb.export_onnx(small, inputs[:2], path, form=form)
    bb.verify(compressor, small, path, inputs)


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=3),
    seed=st.integers(0, 10_000),
    smallest_gamma=st.sampled_from([1e-8, 1e-3]),
    per_channel=st.booleans(),
    widths=st.sampled_from([(8, 8), (4, 8), (2, 4)]),
)
def test_weights_that_are_multiplied_in_any_way(kinds, seed, smallest_gamma, per_channel, widths, tmp_path_factory):
    """Subclassed, functional, standardized and parametrized convolutions, a third of the channels removed."""
    model, inputs = Products([(kind, True) for kind in kinds]), torch.rand(8, 3, 9, 9) * 2 - 1
    give_trained_statistics(model, seed, smallest_gamma, spread=3.0)
    compressor = fixed(model, inputs, per_channel, *widths, drop=1 / 3)
    small = bb.deploy(compressor)
    assert small.macs < compressor.topology.macs
    assert {layer.reason for layer in small.integer.layers if layer.kind != "conv_transpose"} == {None}
    path = tmp_path_factory.mktemp("products") / "network.onnx"
    bb.export_onnx(small, inputs[:2], path)
    bb.verify(compressor, small, path, inputs)


@pytest.mark.parametrize("per_channel", [False, True])
def test_nearly_dead_channels_change_nothing_that_can_be_seen(per_channel):
    """Coarser grids are given to dead channels alone, and outputs stay those of the network that has float biases."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.Conv2d(8, 4, 3),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    with torch.no_grad():
        model[1].weight[:3] = torch.tensor([1e-8, -1e-7, 0.0])
        model[1].bias.normal_()
    inputs = torch.randn(16, 3, 8, 8)
    compressor = fixed(model, inputs, per_channel, 8, 8)
    small = bb.deploy(compressor)
    widened = compressor.model[0].widening() > 1
    assert widened.tolist() == [per_channel] * 2 + [False] * 6
    noted = [note for note in small.integer.notes if "coarser grid" in note]
    assert [note.split(" layers")[0] for note in noted] == ["2 output channels of 1"] * per_channel
    largest = max(small.integer.bias(layer.name).abs().max().item() for layer in small.integer.layers)
    assert largest <= 2**30 * (1 + 1e-6)
    assert small.integer.steps("0").numel() == (8 if per_channel else 1)
    with torch.no_grad():
        simulated, deployed = compressor.model(inputs), small(inputs)
    torch.testing.assert_close(simulated, deployed, rtol=1e-5, atol=1e-5)


def test_one_range_and_a_huge_bias_give_that_channel_steps_of_its_own():
    """The other channels keep their grid: a coarser one for all of them would leave nothing of their weights."""
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(6, 4)), torch.rand(8, 6)
    with torch.no_grad():
        model[0].bias[1] = 1e9
    compressor = fixed(model, inputs, False, 8, 8)
    small = bb.deploy(compressor)
    steps = small.integer.steps("0")
    assert small.integer.layers[0].arithmetic == "integer"
    assert steps[1] > 100 * steps[0]
    assert steps[0] == steps[2] == steps[3]
    assert small.integer.codes("0")[1].tolist() == [0] * 6
    torch.testing.assert_close(small(inputs), compressor.model(inputs))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_convolutions(groups, tmp_path):
    torch.manual_seed(0)
    model, inputs = (
        nn.Sequential(nn.ConvTranspose2d(4, 4, 2, groups=groups), nn.ReLU(), nn.Conv2d(4, 2, 1)),
        torch.rand(4, 4, 3, 3),
    )
    with torch.no_grad():
        model[0].bias[1] = 1e9
    compressor = fixed(model, inputs, False, 8, 8)
    small = bb.deploy(compressor)
    assert small.integer.layers[0].arithmetic == "integer"
    assert small.integer.steps("0").numel() == (4 if groups == 1 else 1)
    bb.export_onnx(small, inputs, tmp_path / "network.onnx")
    bb.verify(compressor, small, tmp_path / "network.onnx", inputs)


def test_pruned_fine_tuned_corrected_rounded_and_stored(tmp_path):
    """All that comes between a plan and a file, on nearly dead channels with ranges of their own."""
    torch.manual_seed(0)
    model, inputs = Trained(0, 1e-8, 3.0).eval(), torch.rand(32, 3, 9, 9) * 2 - 1
    bb.baselines.equalize(model, inputs[:2])
    compressor = bb.attach(model, inputs[:2], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs], "mse")
    found = bb.baselines.sensitivity(compressor, [inputs], (8, 4), loss="output")
    assert len(found.front.points) > 1
    topology = compressor.topology
    plan = bb.Plan.uniform(topology, 4, 8).without(topology, topology.group("block.expand").channels[-2:])
    compressor.fix(plan)
    optimizer = torch.optim.SGD(compressor.parameter_groups(), lr=1e-4)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    reference = copy.deepcopy(model)
    bb.baselines.correct_biases(compressor, [inputs])
    config = bb.baselines.AdaRoundConfig(steps=10, batch_size=4)
    bb.baselines.adaround(compressor, [inputs], config, reference=reference)
    small = bb.deploy(compressor)
    assert [layer.arithmetic for layer in small.integer.layers] == ["integer"] * 5
    assert small.integer.steps("block.expand").numel() == CHANNELS - 2
    assert any("coarser grid" in note for note in small.integer.notes)
    bb.save(small, tmp_path / "small")
    again = bb.load(tmp_path / "small")
    bb.export_onnx(again, inputs[:2], tmp_path / "network.onnx", form="compact")
    bb.verify(compressor, again, tmp_path / "network.onnx", inputs)
