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


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_channels_are_removed_through_an_instance_norm(dims, affine, tracked, multiple, tmp_path):
    """With a multiple of 8 all channels stay, and some of them are zeros behind the norm, too."""
    convolution, norm = CONVOLUTIONS[dims - 1], INSTANCE_NORMS[dims - 1]
    normed = norm(16, affine=affine, track_running_stats=tracked)
    model = nn.Sequential(convolution(3, 16, 3), normed, nn.PReLU(), convolution(16, 4, 3))
    inputs = torch.randn(3, 3, *[8] * dims)
    compressor = compress(randomize(model), inputs)
    small = bb.deploy(compressor, channel_multiple=multiple)
    assert [layer.weight_shape[:2] for layer in small.integer.layers] == [
        (12 if multiple == 1 else 16, 3),
        (4, 12 if multiple == 1 else 16),
    ]
    check_equal(compressor, small, inputs)
    form = "compact" if affine == tracked else "fast"
    bb.export_onnx(small, inputs, tmp_path / "network.onnx", form=form)
    bb.verify(compressor, small, tmp_path / "network.onnx", inputs)


class NormedBranches(nn.Module):
    """Instance norms behind a residual branch, a depthwise layer and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.filter, self.up = nn.Conv2d(8, 8, 3, groups=8), nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.head = nn.Conv2d(6, 2, 1)
        self.norms = nn.ModuleList([nn.InstanceNorm2d(size, affine=True) for size in (8, 8, 8, 6)])

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.norms[0](self.stem(x)))
        x = F.leaky_relu(x + self.norms[1](self.branch(x)))
        return self.head(F.relu(self.norms[3](self.up(F.relu(self.norms[2](self.filter(x)))))))


@pytest.mark.parametrize("spec", [bb.Spec(bits=(4, 8)), bb.Spec.for_backend("onnxruntime")], ids=["plain", "emitting"])
def test_a_channel_that_one_of_two_branches_drops_is_zero_behind_its_instance_norm(spec, tmp_path):
    """A layer that emits codes in front of the norm emits those of zeros there, in training and as deployed."""
    torch.manual_seed(0)
    model, inputs = randomize(NormedBranches()), torch.randn(2, 3, 8, 8)
    compressor = bb.attach(model.eval(), inputs, spec)
    compressor.calibrate([inputs])
    assert {group.name for group in compressor.topology.removable_groups} == {"stem", "up"}
    plan = bb.Plan.uniform(compressor.topology, 4, 8)
    kept = {"stem": (0, 1, 2, 3, 4, 5), "branch": (0, 2, 4, 5, 6), "up": (0, 2, 4)}
    compressor.fix(bb.Plan(plan.bits, kept))
    shift = model.norms[1].bias.detach().clone()
    small = bb.deploy(compressor)
    assert torch.equal(model.norms[1].bias, shift)  # the network that was trained stays as it was
    assert {layer.name: layer.weight_shape[0] for layer in small.integer.layers} == {
        "stem": 7, "branch": 7, "filter": 7, "up": 7, "head": 2,
    }  # fmt: skip
    check_equal(compressor, small, inputs)
    bb.save(small, tmp_path / "network.bits")
    loaded = bb.load(tmp_path / "network.bits", model=NormedBranches())
    assert torch.equal(call(loaded, inputs), call(small, inputs))
    for form in ("fast", "compact"):
        bb.export_onnx(small, inputs, tmp_path / "network.onnx", form=form)
        bb.verify(compressor, small, tmp_path / "network.onnx", inputs)


def test_a_branch_that_vanished_behind_an_instance_norm_goes(tmp_path):
    torch.manual_seed(0)
    model, inputs = randomize(NormedBranches()), torch.randn(2, 3, 8, 8)
    compressor = bb.attach(model.eval(), inputs, bb.Spec(bits=(4, 8)))
    compressor.calibrate([inputs])
    plan = bb.Plan.uniform(compressor.topology, 4, 8)
    compressor.fix(bb.Plan({**plan.bits, "branch.weight": 0}, {"branch": ()}))
    small = bb.deploy(compressor)
    assert "branch" not in [layer.name for layer in small.integer.layers]
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
