"""What the layerwise baselines share: checks, float copies, and networks that run only up to the observed layer."""

import copy

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines.layerwise import (
    along_channels,
    attached_layer,
    channel_axis,
    check_batches,
    check_fixed,
    detached_copy,
    float_copy,
    norm_of,
    observing_layers,
    run_to,
)


class Network(nn.Module):
    """A layer that is called twice between two others; counts the calls of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.twice, self.head = nn.Conv2d(4, 4, 1), nn.Linear(4, 3)
        self.heads = 0

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.twice(torch.relu(self.twice(x)))
        self.heads += 1
        return self.head(x.mean((2, 3)))


X = torch.randn(3, 2, 2, 2, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def calibrated() -> bb.Compressor:
    torch.manual_seed(0)
    compressor = bb.attach(Network().eval(), X, bb.Spec(rules={"head": {"skip": True}}))
    compressor.calibrate([X])
    return compressor


@pytest.fixture
def compressor(calibrated) -> bb.Compressor:
    return bb.Compressor(copy.deepcopy(calibrated.model))


def test_a_plan_that_is_not_final_is_refused(compressor):
    with pytest.raises(ValueError, match=r"my method works on a final plan, and .* is still learning"):
        check_fixed(compressor, "my method")
    compressor.fix()
    check_fixed(compressor, "my method")
    compressor.model.train()
    with pytest.raises(ValueError, match="in training mode"):
        check_fixed(compressor, "my method")


def test_batches_need_enough_examples_that_differ():
    batches = [{"x": torch.zeros(2, 3), "scale": 1.0}, {"x": torch.zeros(1, 3), "scale": 1.0}]
    with pytest.raises(ValueError, match="the 3 examples for my method are all the same"):
        check_batches(batches, "my method")
    with pytest.raises(ValueError, match="my method needs at least 4 examples, and the batches have 3"):
        check_batches(batches, "my method", least=4)
    batches[1]["x"][0, 2] = 1
    assert check_batches(iter(batches), "my method", least=3) == batches
    with pytest.raises(TypeError, match=r"pass \[batch\]"):
        check_batches(torch.zeros(4, 3), "my method")


def test_copies_are_the_float_network(compressor):
    plain = copy.deepcopy(detached_copy(compressor))
    compressor.fix(bb.Plan({**compressor.plan().bits, **dict.fromkeys(compressor.attachment.quantizers, 2)}))
    with torch.no_grad():
        wanted = plain(X)
        torch.testing.assert_close(float_copy(compressor)(X), wanted)
        torch.testing.assert_close(detached_copy(compressor)(X), wanted)
        assert not torch.allclose(compressor.model(X), wanted, rtol=1e-2)
    assert type(plain.first) is nn.Conv2d


def test_layers_and_their_norms_are_found(compressor):
    model, topology = compressor.model, compressor.topology
    assert attached_layer(compressor, "first") is model.first
    assert attached_layer(compressor, "head") is None
    assert norm_of(model, topology.layer("first")) is model.norm
    assert norm_of(model, topology.layer("twice")) is None


def test_a_network_runs_up_to_the_last_call_of_a_layer(compressor):
    model, seen = compressor.model, []
    heads = model.heads
    run_to(model, compressor.topology.layer("twice"), X, lambda x, y: seen.append((x, y)))
    assert len(seen) == 2
    assert model.heads == heads
    assert torch.equal(seen[1][0], torch.relu(seen[0][1]))
    outputs: list[Tensor] = []
    run_to(model, compressor.topology.layer("first"), X, lambda _, y: outputs.append(y), module="norm")
    assert torch.equal(torch.relu(outputs[0]), seen[0][0])


def test_observers_see_all_calls_without_gradients_and_are_removed(compressor):
    seen: list[Tensor] = []
    with observing_layers(
        compressor.model, {"twice": lambda _, y: seen.append(y), "head": lambda x, _: seen.append(x)}
    ):
        compressor.model(X)
    assert [tuple(x.shape) for x in seen] == [(3, 4, 2, 2), (3, 4, 2, 2), (3, 4)]
    assert not any(x.requires_grad for x in seen)
    compressor.model(X)
    assert len(seen) == 3


def test_channels_lie_last_in_a_linear_layer_and_before_the_positions_of_a_convolution(compressor):
    linear, convolution = compressor.topology.layer("head"), compressor.topology.layer("twice")
    assert channel_axis(linear, torch.zeros(2, 5, 3)) == -1
    assert [channel_axis(convolution, torch.zeros(shape)) for shape in ((3, 4, 2, 2), (4, 2, 2))] == [1, 0]
    values = torch.arange(3.0)
    assert along_channels(values, linear, torch.zeros(2, 5, 3)).shape == (1, 1, 3)
    assert along_channels(torch.arange(4.0), convolution, torch.zeros(4, 2, 2)).shape == (4, 1, 1)
