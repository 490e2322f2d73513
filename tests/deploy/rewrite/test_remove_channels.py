"""Channels removed from the graph: the result is that of the network whose channels are masked."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from tests.deploy.comparison import call, check_equal, mixed_plan
from tests.deploy.networks import compress, make
from tests.graph.networks import randomize


@pytest.mark.parametrize("name", ["residual", "depthwise", "concatenation", "shuffled", "padded shortcut", "vit"])
def test_pruned_and_masked_are_the_same_in_float(name):
    model, inputs = make(name)
    compressor = bb.attach(model.eval(), inputs, bb.Spec(bits=(32,), input_bits=32, residual_bits=None))
    compressor.calibrate([inputs])
    kept = mixed_plan(compressor.topology).kept
    compressor.fix(bb.Plan(bb.Plan.uniform(compressor.topology, 32, 32, 32, residual_bits=None).bits, kept))
    small = bb.deploy(compressor)
    assert small.integer.structure.removed
    assert small.parameter_count == compressor.cost().parameters
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert ((actual - expected).norm() / expected.norm()).item() < 1e-5


class FixedView(nn.Module):
    """Sizes written down as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)).view(-1, 8, 64).reshape(-1, 8, 8, 8)
        return self.head(F.max_pool2d(self.second(x), 2).view(-1, 96))


def test_sizes_in_the_users_code_are_corrected():
    model, inputs = randomize(FixedView()), torch.randn(3, 3, 8, 8)
    compressor = compress(model, inputs)
    small = bb.deploy(compressor)
    assert small.parameter_count == compressor.cost().parameters < sum(p.numel() for p in model.parameters())
    check_equal(compressor, small, inputs)


def test_channels_are_removed_through_an_instance_norm(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.InstanceNorm2d(16), nn.PReLU(), nn.Conv2d(16, 4, 3))
    inputs = torch.randn(3, 3, 8, 8)
    compressor = compress(randomize(model), inputs)
    small = bb.deploy(compressor)
    assert small.parameter_count == compressor.cost().parameters < sum(p.numel() for p in model.parameters())
    check_equal(compressor, small, inputs)
    bb.export_onnx(small, inputs, tmp_path / "network.onnx")
    bb.verify(compressor, small, tmp_path / "network.onnx", inputs)


class Scaled(nn.Module):
    """A parameter with a value for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale[:, None, None]


def test_parameters_with_a_value_per_channel_are_cut(tmp_path):
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.PReLU(16), nn.Conv2d(16, 16, 3, groups=16), Scaled(), nn.PReLU(16), nn.Conv2d(16, 4, 3)
    )
    inputs = torch.randn(3, 3, 12, 12)
    compressor = compress(randomize(model), inputs)
    small = bb.deploy(compressor)
    assert small.integer.layer("5").weight_shape[1] < 16
    assert small.parameter_count == compressor.cost().parameters
    check_equal(compressor, small, inputs)
    bb.export_onnx(small, inputs, tmp_path / "network.onnx")
    bb.verify(compressor, small, tmp_path / "network.onnx", inputs)


class Branches(nn.Module):
    """The mean of branches that are stacked, and the largest of the parts of one layer's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(3, 16, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([F.relu(self.left(x)), self.right(x)]).mean(dim=0)
        return self.last(x.unflatten(1, (2, 8)).amax(1))


def test_channels_of_stacked_branches_are_removed(tmp_path):
    model, inputs = randomize(Branches()), torch.randn(3, 3, 8, 8)
    compressor = compress(model, inputs)
    (group,) = compressor.topology.removable_groups
    assert (group.size, group.producers, group.consumers) == (8, ("left", "right"), ("last",))
    small = bb.deploy(compressor)
    assert small.parameter_count == compressor.cost().parameters < sum(p.numel() for p in model.parameters())
    check_equal(compressor, small, inputs)
    bb.export_onnx(small, inputs, tmp_path / "network.onnx")
    bb.verify(compressor, small, tmp_path / "network.onnx", inputs)


class Stacked(nn.Module):
    """Channels of an image without a batch, concatenated along the default dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Conv2d(2, 6, 3), nn.Conv2d(2, 5, 3), nn.Conv2d(11, 4, 3)

    def forward(self, x):
        return self.last(torch.cat([F.relu(self.left(x)), F.relu(self.right(x))]))


def test_channels_concatenated_along_the_default_dimension_are_removed():
    torch.manual_seed(0)
    x = torch.randn(2, 8, 8)
    compressor = bb.attach(Stacked().eval(), x, bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([x])
    compressor.fix(mixed_plan(compressor.topology, operands=False))
    small = bb.deploy(compressor)
    shapes = {layer.name: layer.weight_shape for layer in small.integer.layers}
    assert shapes["last"][1] == shapes["left"][0] + shapes["right"][0] < 11
    assert torch.allclose(small(x), compressor.model(x), atol=1e-5)


class Interleaved(nn.Module):
    """Channels and positions of a sequence lie in one dimension for a while, maybe in another order."""

    def __init__(self, *, flipped: bool) -> None:
        super().__init__()
        self.first, self.last, self.flipped = nn.Linear(4, 8), nn.Linear(8, 2), flipped

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        z = torch.relu(y.reshape(y.shape[0], -1))
        z = z.flip(1).tanh().flip(1) if self.flipped else z
        return self.last(z.reshape(y.shape))


@pytest.mark.parametrize("flipped", [False, True])
def test_a_size_that_channels_are_removed_from_is_fixed_with_the_reason_where_their_positions_matter(flipped):
    torch.manual_seed(0)
    inputs = torch.randn(3, 6, 4)
    compressor = bb.attach(Interleaved(flipped=flipped).eval(), inputs, bb.Spec(bits=(8,)))
    compressor.calibrate([inputs])
    plan, (group,) = bb.Plan.uniform(compressor.topology, 8, 8), compressor.topology.removable_groups
    compressor.fix(plan.without(compressor.topology, set(group.channels[:3])))
    small = bb.deploy(compressor)
    assert small.integer.layer("first").weight_shape == (5, 4)
    assert [size.name for size in small.integer.structure.sizes] == ["batch"] + ([] if flipped else ["length"])
    reason = "channels are removed from an operation's size that is computed from this one"
    assert (reason in str(small)) == flipped
    other = inputs[:1] if flipped else torch.randn(2, 9, 4)
    with torch.no_grad():
        for x in (inputs, other):
            torch.testing.assert_close(small(x), compressor.model(x), rtol=1e-4, atol=1e-5)
