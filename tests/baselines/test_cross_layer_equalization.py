"""Equalization: the factor by hand, the same function afterwards, equal ranges, and reasons for what is left alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines import equalize
from bayesbits.baselines.cross_layer_equalization import equalizing_factor
from bayesbits.zoo import models
from tests.graph.networks import Tied, randomize
from tests.graph.products import InputsFirst, Padded, Standardized


def folded(layer: nn.Module, norm: nn.BatchNorm2d | None = None) -> Tensor:
    if norm is None:
        return layer.weight.detach()
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return (layer.weight * factor.reshape(-1, 1, 1, 1)).detach()


def test_the_factor_by_hand():
    first, second = torch.tensor([4.0, 1.0, 0.0, 2.0]), torch.tensor([1.0, 9.0, 1.0, 0.0])
    # sqrt(4 * 1) / 1 = 2; sqrt(1 * 9) / 9 = 1/3; a channel without a range on one side stays.
    torch.testing.assert_close(equalizing_factor(first, second), torch.tensor([2.0, 1 / 3, 1.0, 1.0]))


def test_two_linear_layers_by_hand():
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[4.0, -2.0], [0.5, -1.0]]))
        network[0].bias.copy_(torch.tensor([2.0, 3.0]))
        network[2].weight.copy_(torch.tensor([[-1.0, 9.0]]))
    report = equalize(network, torch.ones(1, 2))
    # s = (2, 1/3): the first row is halved and its column doubled, the second trebled and its column divided by 3.
    torch.testing.assert_close(network[0].weight.detach(), torch.tensor([[2.0, -1.0], [1.5, -3.0]]))
    torch.testing.assert_close(network[0].bias.detach(), torch.tensor([1.0, 9.0]))
    torch.testing.assert_close(network[2].weight.detach(), torch.tensor([[-2.0, 3.0]]))
    (pair,) = report.pairs
    assert (pair.producer, pair.consumers, pair.channels) == ("0", ("2",), 2)
    assert pair.spread_before == pytest.approx(4.0)
    assert pair.spread_after == pytest.approx(1.5)
    assert [entry.name for entry in report.skipped] == ["2"]


class Block(nn.Module):
    """All there is to equalize: depthwise and grouped layers, a transposed one, a flatten, and two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.expand_norm = nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.filter, self.filter_norm = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 6, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(6, 8, 2, stride=2, groups=2)
        self.left, self.right = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 3, padding=1)
        self.head = nn.Linear(2 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.expand_norm(self.expand(x)))
        x = F.relu(self.filter_norm(self.filter(x)))
        x = F.leaky_relu(self.up(F.relu(self.grouped(x))))
        x = F.max_pool2d(F.relu(self.left(x)) + F.relu(self.right(x)), 2)
        return self.head(x.flatten(1))


def test_the_network_computes_the_same_and_keeps_its_structure():
    network = randomize(Block()).eval()
    x = torch.randn(4, 3, 4, 4)
    before, keys = network(x), network.state_dict().keys()
    report = equalize(network, x)
    assert [pair.producer for pair in report.pairs] == ["expand", "filter", "grouped", "up"]
    assert report.pairs[-1].consumers == ("left", "right")
    assert network.state_dict().keys() == keys
    torch.testing.assert_close(network(x), before, rtol=1e-5, atol=1e-5 * before.abs().max().item())
    network.train()  # statistics are untouched, and the batch's own give the same too
    assert torch.isfinite(network(x)).all()


def test_ranges_are_equal_afterwards_in_a_depthwise_triple_too():
    network = randomize(Block()).eval()
    product = folded(network.expand, network.expand_norm).abs().amax((1, 2, 3)) * folded(
        network.filter, network.filter_norm
    ).abs().amax((1, 2, 3))
    grouped = network.grouped.weight.detach().abs().amax((2, 3))
    product = product * torch.cat([grouped[:3].amax(0), grouped[3:].amax(0)])
    with torch.no_grad():
        network.up.weight.zero_()  # so that the triple has nothing to equalize behind it
    report = equalize(network, torch.randn(1, 3, 4, 4))
    assert 1 < report.sweeps < 100
    wanted = product.pow(1 / 3)
    grouped = network.grouped.weight.detach().abs().amax((2, 3))
    for ranges in (
        folded(network.expand, network.expand_norm).abs().amax((1, 2, 3)),
        folded(network.filter, network.filter_norm).abs().amax((1, 2, 3)),
        torch.cat([grouped[:3].amax(0), grouped[3:].amax(0)]),
    ):
        torch.testing.assert_close(ranges, wanted, rtol=5e-3, atol=0)


def test_a_second_time_nothing_moves():
    network = randomize(Block()).eval()
    x = torch.randn(1, 3, 4, 4)
    equalize(network, x)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    assert equalize(network, x).sweeps == 1
    for key, value in network.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=5e-3, atol=0)


def test_what_is_left_alone_is_listed_with_the_reason():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.GELU(),
        nn.Conv2d(4, 4, 1),
        nn.BatchNorm2d(4, affine=False),
        nn.ReLU(),
        nn.Conv2d(4, 2, 1),
        nn.InstanceNorm2d(2, affine=True),
        nn.ReLU(),
        nn.Conv2d(2, 2, 1),
    ).eval()
    before = copy.deepcopy(network.state_dict())
    report = equalize(network, torch.randn(1, 3, 4, 4))
    reasons = {entry.name: entry.reason for entry in report.skipped}
    assert reasons["0"] == "passes gelu"
    assert "no scale and shift" in reasons["2"]
    assert "passes instance_norm" in reasons["5"]
    assert "output" in reasons["8"]
    assert not report.pairs
    assert "passes gelu" in str(report)
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key])
    tied = {entry.reason for entry in equalize(Tied(), torch.randn(1, 4)).skipped}
    assert "tied weights (first.weight)" in tied


def test_residual_streams_are_left_alone():
    report = equalize(models.create("resnet20").eval(), torch.randn(1, 3, 32, 32))
    assert len(report.pairs) == 9
    assert "several layers make these channels" in report.skipped[0].reason


def test_relu6_is_replaced_only_if_asked():
    network = randomize(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(), nn.Conv2d(4, 4, 1), nn.ReLU6(inplace=True)))
    x = torch.randn(1, 3, 4, 4)
    left = equalize(network, x)
    assert not left.replaced
    assert not left.pairs
    assert left.skipped[0].reason == "passes hardtanh"
    report = equalize(network.eval(), x, replace_relu6=True)
    assert report.replaced == ("1", "3")
    assert (type(network[1]), type(network[3])) == (nn.ReLU, nn.ReLU)
    assert (network[3].inplace, network[3].training) == (True, False)
    assert [pair.producer for pair in report.pairs] == ["0"]
    assert "1: a ReLU in place of ReLU6" in str(report)


def test_networks_that_cannot_be_equalized_are_refused():
    class Unreadable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.function = nn.Linear(2, 2), nn.ReLU6()

        def forward(self, x: Tensor) -> Tensor:
            return self.function(self.layer(x)) if float(x.sum()) > 0 else x

    network = Unreadable()
    with pytest.raises(ValueError, match=r"torch\.export could not read"):
        equalize(network, torch.ones(1, 2), replace_relu6=True)
    assert isinstance(network.function, nn.ReLU6)
    with pytest.raises(ValueError, match="at least once"):
        equalize(nn.Linear(2, 2), torch.ones(1, 2), sweeps=0)
    attached = nn.Sequential(nn.Linear(2, 2))
    bb.attach(attached, torch.ones(1, 2))
    with pytest.raises(ValueError, match="attached already"):
        equalize(attached, torch.ones(1, 2))


def test_parameters_that_functions_multiply_take_factors_and_computed_weights_do_not():
    torch.manual_seed(0)
    model = nn.Sequential(
        Padded(2, 4, 2), nn.ReLU(), Padded(4, 4, 2), nn.ReLU(), Standardized(4, 4, 1), nn.ReLU(), Padded(4, 2, 1)
    )
    x, weights = torch.randn(2, 2, 5, 5), [model[index].weight.detach().clone() for index in (0, 2, 4, 6)]
    before = model(x)
    report = equalize(model, x)
    torch.testing.assert_close(model(x), before)
    assert [(pair.producer, pair.consumers) for pair in report.pairs] == [("0", ("2",))]
    assert report.pairs[0].spread_after < report.pairs[0].spread_before
    reasons = {entry.name: entry.reason for entry in report.skipped}
    assert reasons["2"] == reasons["4"] == "the weight or bias of 4 is computed from parameters, and cannot be written"
    assert [torch.equal(model[index].weight, old) for index, old in zip((0, 2, 4, 6), weights, strict=True)] == [
        False, False, True, True
    ]  # fmt: skip


def test_a_matrix_stored_by_inputs_takes_factors():
    torch.manual_seed(0)
    model, x = nn.Sequential(InputsFirst(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
    before = model(x)
    report = equalize(model, x)
    torch.testing.assert_close(model(x), before)
    assert report.pairs[0].spread_after < report.pairs[0].spread_before
