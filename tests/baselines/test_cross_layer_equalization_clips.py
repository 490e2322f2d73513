"""Equalization through ReLU6: bounds by hand, outputs that stay equal, and channels that reach the clip left alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.baselines import equalize
from bayesbits.baselines.cross_layer_equalization_clips import clipped_layers, keep_below_clip, least_factors
from bayesbits.graph.layer_paths import read_layer_paths


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.filter = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3, groups=8),
        )
        self.last, self.clip, self.other = nn.Conv2d(8, 4, 1), nn.ReLU6(), nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.clip(self.filter(self.clip(self.norm(self.first(x))))))


def prepared() -> tuple[Separable, Tensor]:
    torch.manual_seed(0)
    model = Separable().eval()
    with torch.no_grad():
        model.norm.weight.copy_(torch.logspace(-2, 0.9, 8))
        model.norm.bias.normal_()
    return model, torch.randn(32, 3, 8, 8)


def test_the_network_computes_the_same_with_its_relu6_and_more_equal_ranges():
    model, x = prepared()
    before = copy.deepcopy(model)
    report = equalize(model, x[:2], batches=[x[:16], x[16:]])
    assert not report.replaced
    assert type(model.clip) is nn.ReLU6
    assert [pair.producer for pair in report.pairs] == ["first", "filter"]
    assert report.pairs[0].spread_after < 0.5 * report.pairs[0].spread_before
    with torch.no_grad():
        torch.testing.assert_close(model(x), before(x), rtol=1e-4, atol=1e-5)
        ours, theirs = (one.norm(one.first(x)).amax((0, 2, 3)) for one in (model, before))
    clipped = 1.25 * theirs >= 6
    assert clipped.any()
    torch.testing.assert_close(ours[clipped], theirs[clipped], rtol=1e-5, atol=1e-5)
    assert ours[~clipped].max().item() == pytest.approx(6 / 1.25, rel=1e-4)


def test_without_batches_such_channels_are_skipped():
    model, x = prepared()
    report = equalize(model, x[:2])
    assert {entry.name for entry in report.skipped} >= {"first", "filter"}
    assert not report.pairs
    with pytest.raises(ValueError, match="give one of the two"):
        equalize(model, x[:2], batches=[x], replace_relu6=True)


def test_factors_have_bounds_by_hand():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU6(), nn.Linear(3, 1)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    paths = read_layer_paths(model, torch.zeros(2, 2))
    assert clipped_layers(paths) == {"0": "1"}
    least = least_factors(model, paths, ["0"], [torch.tensor([[2.4, 1.0]]), torch.tensor([[1.0, 5.0]])])["0"]
    assert least[0].item() == pytest.approx(1.25 * 2.4 / 6)
    assert least[1].isnan()  # 1.25 * 5 reaches the clip
    assert least[2].item() == 0.0
    scale = torch.tensor([9.0, 0.1, 3.0, 0.2], dtype=torch.float64)
    keep_below_clip(scale, {1: least}, 1)
    assert scale.tolist() == pytest.approx([9.0, 0.5, 1.0, 0.2])
    keep_below_clip(scale, {1: least}, 0)
    assert scale[0].item() == 9.0


def test_a_relu6_that_clips_something_else_too_is_left_alone():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.clip = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU6()

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.clip(self.a(self.clip(x))))

    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu6(self.a(x)))

    for model in (Shared().eval(), Functional().eval()):
        assert clipped_layers(read_layer_paths(model, torch.zeros(2, 3))) == {}
        assert not equalize(model, torch.zeros(2, 3), batches=[torch.randn(8, 3)]).pairs
