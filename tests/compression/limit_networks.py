"""Tiny networks whose plans can all be counted, with random latency tables and random limits."""

import random
from dataclasses import replace
from functools import cache
from itertools import product

import torch
from torch import nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.compression.planning import make_plan
from tests.latency_tables import made_up_table

LIMITS = ("latency_ms", "relative_bops", "weight_bytes")


class Branches(nn.Module):
    """Two layers read one tensor, their outputs are added; one of them has the weight of a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)
        self.right.weight = self.left.weight

    def forward(self, x):
        x = F.relu(self.first(x))
        return self.last(F.relu(self.left(x)) + self.right(x))


class Chain(nn.Module):
    """Layers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(F.relu(self.middle(F.relu(self.first(x)))))


@cache
def compressor(number):
    """Networks whose weights and activations choose between a narrow width and float, or between three widths."""
    torch.manual_seed(0)
    if number == 0:
        return bb.attach(Branches(), torch.zeros(1, 3), bb.Spec(bits=(4, 32), residual_bits=None))
    rules = {"first.weight": {"bits": 8}}
    return bb.attach(Chain(), torch.zeros(1, 4), bb.Spec(bits=(2, 8, 16, 32), input_bits="learned", rules=rules))


def random_table(attachment, seed, overhead=0.05):
    """Every row and every overhead by chance; the overheads are below zero as often as above."""
    choose = random.Random(seed)
    table = made_up_table(attachment.topology)
    rows = {name: choose.uniform(0.001, 0.1) for name in table.rows}
    changed = tuple(replace(one, ms=choose.uniform(-overhead, overhead)) for one in table.overheads)
    return replace(table, rows=rows, overheads=changed)


def every_plan(attachment, kept=None):
    """All widths of each tensor, with the channels of one plan."""
    widths = attachment.search_space.widths
    for bits in product(*widths.values()):
        yield make_plan(attachment, dict(zip(widths, bits, strict=True)), kept or {})


def random_limits(choose, costs):
    """Two or three limits: the costs of one plan that is the best in some way, of which one may be a little less, or
    those of several plans."""
    names = ["latency_ms", *choose.sample(LIMITS[1:], choose.choice([1, 1, 2]))]
    if choose.random() < 0.3:
        return {name: getattr(choose.choice(costs), name) * choose.choice([1.0, 0.98, 1.05]) for name in names}
    weights = {name: choose.random() / max(getattr(cost, name) for cost in costs) for name in names}
    best = min(costs, key=lambda cost: sum(weight * getattr(cost, name) for name, weight in weights.items()))
    limits = {name: getattr(best, name) for name in names}
    if choose.random() < 0.4:
        limits[choose.choice(names)] *= 0.999
    return limits
