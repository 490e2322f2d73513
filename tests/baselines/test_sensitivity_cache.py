"""Replayed runs give the same bits as whole ones, and compute less."""

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines.sensitivity_cache import CachedForward
from tests.graph.products import Functional


class Scale(nn.Module):
    """Multiplies by a number that a test changes."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Block(nn.Module):
    """A residual block that writes in place: by a module, by +=, and by a module whose result is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.relu = nn.Linear(4, 4), Scale(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.layer(self.scale(x)))
        y += x
        z = self.layer(y)  # the same module again
        self.relu(z)
        return z


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.first, self.second, self.third = Scale(), Block(), Block(), Block()
        self.pair = Pair()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.pair(self.second(self.first(self.before(x))))
        return self.third(a) + b["half"]


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x, {"half": x / 2}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def scales(net: Net) -> list[Scale]:
    return [net.before, net.first.scale, net.second.scale, net.third.scale]


@torch.no_grad()
def test_every_single_change_gives_the_bits_of_a_whole_run(net):
    replay = CachedForward(net, X)
    assert torch.equal(replay.run(), net(X))
    whole = replay.computed
    computed = []
    for scale in scales(net):
        scale.factor = 1.5
        assert torch.equal(replay.run({scale}, record=False), net(X))
        computed.append(replay.computed)
        scale.factor = 1.0
    assert computed == sorted(computed, reverse=True)
    assert computed[0] == whole
    assert computed[-1] < whole / 2


@torch.no_grad()
def test_changes_that_stay_give_the_bits_of_a_whole_run_in_any_order(net):
    replay = CachedForward(net, X)
    replay.run()
    for index, scale in enumerate([scales(net)[i] for i in (2, 0, 3, 1, 3, 2)]):
        scale.factor = 1.0 + index / 7
        assert torch.equal(replay.run({scale}), net(X)), index


@torch.no_grad()
def test_nothing_that_changed_computes_nothing_but_what_writes_in_place(net):
    replay = CachedForward(net, X)
    output = replay.run()
    assert torch.equal(replay.run(set()), output)
    assert replay.computed == 0  # the outermost modules did not write into their inputs


@torch.no_grad()
def test_a_network_that_takes_another_way_behind_the_change_is_followed():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.one, self.other = Scale(), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.scale(x)
            return self.one(x) if x.sum() > 0 else self.other(self.one(x))

    torch.manual_seed(0)
    net = Branching().eval()
    replay = CachedForward(net, X.abs())
    replay.run()
    for factor in (-1.0, 2.0, -3.0):
        net.scale.factor = factor
        assert torch.equal(replay.run({net.scale}), net(X.abs()))


@torch.no_grad()
def test_afterwards_the_modules_are_their_own_again_after_errors_too(net):
    replay = CachedForward(net, X[:, :3])
    with pytest.raises(RuntimeError):
        replay.run()
    assert not any("forward" in module.__dict__ for module in net.modules())
    replay = CachedForward(net, X)
    replay.run()
    assert not any("forward" in module.__dict__ for module in net.modules())


@torch.no_grad()
def test_products_are_found_where_a_child_with_a_weight_of_the_same_shape_could_be_left_out():
    torch.manual_seed(0)
    model, x = nn.Sequential(Functional(3)).eval(), torch.randn(2, 3, 5, 5)
    compressor = bb.attach(model, x, bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    cached = CachedForward(model, x)
    cached.run()
    quantizer = compressor.attachment.quantizers["0.last"]
    quantizer.fix(2)
    assert torch.equal(cached.run({quantizer}), model(x))
