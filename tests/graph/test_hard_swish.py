"""Hard-swish in all of its forms is found, and nothing that only looks like it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.graph.trace import trace
from bayesbits.records.topology import Clip, Topology

X = torch.linspace(-4, 4, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)


class Between(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def read(function: Callable[[Tensor], Tensor]) -> Topology:
    return trace(Between(function).eval(), X)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "function": F.hardswish,
    "module": nn.Hardswish(inplace=True),
    "hard sigmoid": lambda x: x * F.hardsigmoid(x),
    "hard sigmoid first": lambda x: F.hardsigmoid(x) * x,
    "product divided": lambda x: x * F.relu6(x + 3.0) / 6.0,
    "gate divided": lambda x: x * (F.hardtanh(x + 3, 0.0, 6.0) / 6),
    "clamp": lambda x: (x + 3).clamp(0, 6) / 6 * x,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_found_and_takes_away_what_is_below_minus_three(form: str) -> None:
    found = read(FORMS[form])
    assert found.hard_swishes == ("first.output",)
    assert found.clips == (Clip("first.output", -3.0, None),)


@pytest.mark.parametrize(
    "function",
    [
        F.silu,
        lambda x: x * F.relu6(x + 2.0) / 6.0,
        lambda x: x * F.relu6(x + 3.0) / 5.0,
        lambda x: x * F.hardtanh(x + 3.0, 0.0, 5.0) / 6.0,
        lambda x: x * F.relu6(torch.add(x, 3.0, alpha=2)) / 6.0,
        lambda x: x * F.relu6(x + 3.0),
        lambda x: x * F.relu6(x + 3.0) / 6.0 + x,  # numbers below -3 are read, too
        lambda x: x * (gate := F.hardsigmoid(x)) + gate,
        lambda x: x.mean((2, 3), keepdim=True) * F.hardsigmoid(x),
        lambda x: x + F.hardsigmoid(x),
    ],
)
def test_other_functions_are_not(function: Callable[[Tensor], Tensor]) -> None:
    found = read(function)
    assert (found.hard_swishes, found.clips) == ((), ())


def test_behind_a_pooling_it_takes_away_the_same_but_does_not_read_the_tensor() -> None:
    found = read(lambda x: F.hardswish(F.max_pool2d(x, 2)))
    assert (found.hard_swishes, found.clips) == ((), (Clip("first.output", -3.0, None),))
