"""The attached instance norm: its gate multiplies scale and shift, so that a loss sees it."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.nn import ChannelGate
from bayesbits.nn.class_exchange import restore_class
from bayesbits.nn.instance_norm import AttachedInstanceNorm, attach_instance_norm
from bayesbits.nn.weight_product import find_layer

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
OPTIONS = [{"affine": affine, "track_running_stats": tracked} for affine in (False, True) for tracked in (False, True)]


def norms(dims: int, options: dict[str, bool]) -> tuple[nn.Module, nn.Module]:
    """Two equal norms of three channels."""
    torch.manual_seed(0)
    norm = NORMS[dims - 1](3, **options)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    if norm.running_mean is not None:
        norm.running_mean.uniform_(0.5, 1.0)
    return norm, copy.deepcopy(norm)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_closed_gate_makes_its_channel_zero_and_the_others_stay(dims, options, training):
    plain, norm = norms(dims, options)
    gate = ChannelGate(3)
    gate.fix([True, False, True])
    attach_instance_norm(norm, gate)
    x = torch.randn(4, 3, *[5] * dims) + 1.0
    for one in (x, x[0]):  # an image alone is normalized, too
        expected, actual = plain.train(training)(one), norm.train(training)(one)
        channels = one.dim() - 1 - dims
        kept, closed = torch.tensor([0, 2]), torch.tensor([1])
        torch.testing.assert_close(actual.index_select(channels, kept), expected.index_select(channels, kept))
        assert not actual.index_select(channels, closed).any()
        torch.testing.assert_close(norm.running_mean, plain.running_mean)
    restore_class(norm)
    assert type(norm) is NORMS[dims - 1]
    assert not hasattr(norm, "parts")


class Values(nn.Module):
    """A gate with these values."""

    idle = False

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.given = given

    def values(self) -> Tensor:
        return self.given


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_gradient_of_the_gate_is_that_of_finite_differences(dims, options):
    norm = norms(dims, options)[1].double()
    x = torch.randn(2, 3, *[3] * dims, dtype=torch.float64)

    def gated(values: Tensor) -> Tensor:
        one = copy.deepcopy(norm)
        attach_instance_norm(one, Values(values))
        return one(x).square().sum(dim=tuple(dim for dim in range(x.dim()) if dim != 1))

    values = torch.tensor([0.2, 0.7, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gated, values)
    assert torch.autograd.grad(gated(values).sum(), values)[0].min() > 1.0


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_loss_sees_the_gates_of_a_layer_in_front(dims, options):
    """In front of the norm a gate would change nothing until it is closed, and the loss would give it no gradient."""
    torch.manual_seed(0)
    convolution = CONVOLUTIONS[dims - 1]
    model = nn.Sequential(convolution(2, 3, 3), norms(dims, options)[1], nn.ReLU(), convolution(3, 2, 1))
    x = torch.randn(4, 2, *[6] * dims)
    spec = bb.Spec(bits=(32,), input_bits=32, residual_bits=None, gates="sigmoid")
    compressor = bb.attach(model, x, spec)
    compressor.calibrate([x])
    gate = compressor.attachment.channel_gates["0"]
    logits = gate.gates.logits
    with torch.no_grad():
        logits.copy_(torch.tensor([0.3, -0.2, 0.5]))

    def loss() -> Tensor:
        return 100 * model.train()(x).square().mean()

    loss().backward()
    step = 0.05
    for index in range(3):
        either = []
        for sign in (-1, 1):
            with torch.no_grad():
                logits[index] += sign * step
                either.append(loss())
                logits[index] -= sign * step
        expected = float((either[1] - either[0]) / (2 * step))
        assert abs(expected) > 1e-2
        assert float(logits.grad[index]) == pytest.approx(expected, rel=0.02, abs=1e-3)


def network() -> tuple[bb.Compressor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Conv2d(8, 2, 1))
    nn.init.uniform_(model[1].bias, 0.5, 1.0)
    x = torch.randn(2, 3, 8, 8)
    compressor = bb.attach(model.eval(), x, bb.Spec(bits=(4, 8)))
    compressor.calibrate([x])
    return compressor, x


def test_the_layer_itself_emits_zeros_once_its_channels_are_final():
    compressor, x = network()
    layer = find_layer(compressor.model, "0")
    with torch.no_grad():
        compressor.attachment.channel_gates["0"].gates.logits[:3] = -6.0
        learning = layer(x)
        assert learning[:, :3].abs().amax((0, 2, 3)).min() > 0
        assert not compressor.model[:2](x)[:, :3].any()
        compressor.fix()
        final = layer(x)
    assert not final[:, :3].any()
    assert final[:, 3:].any()
    assert not compressor.model[1](final)[:, :3].any()


def test_copies_pickles_and_state_have_the_gate_and_a_detached_network_has_none():
    compressor, x = network()
    reference = copy.deepcopy(compressor.model)
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8).without(compressor.topology, {4, 6}))
    with torch.no_grad():
        expected = compressor.model(x)
        assert not torch.equal(reference(x), expected)
        for copied in (copy.deepcopy(compressor.model), pickle.loads(pickle.dumps(compressor.model))):
            twin = bb.Compressor(copied)
            gate = twin.attachment.channel_gates["0"]
            assert isinstance(copied[1], AttachedInstanceNorm)
            assert copied[1].parts.gate is copied[0].parts.gate is gate
            assert gate is not compressor.attachment.channel_gates["0"]
            assert torch.equal(copied(x), expected)
        reference.load_state_dict(compressor.model.state_dict())
        assert torch.equal(reference(x), expected)
    assert not [name for name in compressor.model.state_dict() if name.startswith("1.") and "gate" in name]
    norm = compressor.model[1]
    compressor.detach()
    assert type(norm) is nn.InstanceNorm2d
    assert not hasattr(norm, "parts")


def test_without_pruning_nothing_is_attached():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    bb.attach(model, torch.randn(2, 3, 8, 8), bb.Spec(prune=False))
    assert type(model[1]) is nn.InstanceNorm2d
