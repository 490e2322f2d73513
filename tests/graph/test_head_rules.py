"""Attention heads as groups of channels: found through any way of writing them, and only where they do not mix."""

import pytest
from torch import Tensor, nn

from bayesbits.graph.layer_paths import read_layer_paths
from bayesbits.graph.trace import trace
from tests.graph.attention import HEADS, KINDS, WIDTH, attention, examples
from tests.graph.heads import FORMS, Heads, heads, inputs
from tests.graph.removal import check_every_group

SHARED = {"keys": 2, "rotary": True, "biased": True}


@pytest.mark.parametrize(("form", "options"), [("matmul", {}), *((form, SHARED) for form in FORMS)])
def test_heads_of_every_form(form, options):
    model = heads(form, **options)
    topology = trace(model, inputs())
    (group,) = topology.removable_groups
    keys = options.get("keys", 4)
    assert (group.name, group.size, group.block) == ("value", keys, 4)
    assert (group.producers, group.consumers) == (("query", "key", "value"), ("out",))
    classes = tuple(channel for channel in group.channels for _ in range(4))
    assert topology.layer("value").out_channels == topology.layer("key").out_channels == classes
    queries = tuple(channel for channel in group.channels for _ in range(16 // keys))
    assert topology.layer("query").out_channels == topology.layer("out").in_channels == queries
    followers = {layer.name: layer.followers for layer in topology.layers}
    assert followers == {"query": tuple(range(16)), "key": tuple(range(4 * keys)), "value": (), "out": ()}
    assert {entry.slices for entry in topology.unsupported} <= {queries[::4], queries[::4] * 3}
    check_every_group(model, inputs(), topology)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_of_one_layer_for_queries_keys_and_values(kind):
    model = attention(kind)
    topology = trace(model, examples())
    (group,) = topology.removable_groups
    assert (group.name, group.size, group.block) == ("qkv", HEADS, WIDTH // HEADS)
    layer = topology.layer("qkv")
    assert layer.out_channels == 3 * topology.layer("proj").in_channels
    assert layer.followers == tuple(range(2 * WIDTH))
    assert layer.deciding == tuple(range(2 * WIDTH, 3 * WIDTH))


class TalkingHeads(Heads):
    """Mixes the scores of all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def probabilities(self, scores, mask):
        return self.mix(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class AcrossHeads(Heads):
    """A softmax over the heads."""

    def probabilities(self, scores, mask):
        return scores.softmax(1)


class ShiftedValues(Heads):
    """Values that are not zero where their layer emits zeros."""

    def projected(self, x):
        return self.query(x), self.key(x), self.value(x).sigmoid()


class NormedQueries(Heads):
    """Queries with a normalization over all of their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def projected(self, x):
        return self.norm(self.query(x)), self.key(x), self.value(x)


class ReturnedScores(Heads):
    """Returns the probabilities too."""

    def probabilities(self, scores, mask):
        self.found = scores.softmax(-1)
        return self.found

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), self.found


class ValuesBeside(Heads):
    """Reads the values of the head beside."""

    def attend(self, query, key, value, batch):
        return super().attend(query, key, value.roll(1, 1), batch)


def test_a_head_is_what_is_multiplied_and_not_where_it_lies():
    topology = trace(model := ValuesBeside().eval(), inputs())
    values, queries = (topology.layer(name).out_channels[::4] for name in ("value", "query"))
    assert values == (*queries[1:], queries[0])
    check_every_group(model, inputs(), topology)


class SummedHeads(Heads):
    """Adds the heads up before a layer reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        parts = (part.view(*x.shape[:2], -1, 4).transpose(1, 2) for part in self.projected(x))
        return self.out(self.attend(*parts, x.shape[0]).sum(1))


PRODUCT = "feeds attention product in matmul_1"
TOGETHER = "they are those of one head, or of all heads together"


@pytest.mark.parametrize(
    ("network", "query", "value"),
    [
        (TalkingHeads, "scores of attention feed a layer", "scores of attention feed a layer"),
        (AcrossHeads, "passes softmax", PRODUCT),
        (ShiftedValues, "passes sigmoid", "passes sigmoid"),
        (NormedQueries, "passes layer_norm", PRODUCT),
        (ReturnedScores, "reaches the network's output", "reaches the network's output"),
        (SummedHeads, TOGETHER, TOGETHER),
        (lambda: Heads(heads=1, keys=1), "feeds attention product in matmul", PRODUCT),
        (lambda: Heads(keys=1), TOGETHER, TOGETHER),
    ],
)
def test_where_heads_mix_they_stay_with_the_reason(network, query, value):
    topology = trace(network().eval(), inputs())
    assert "out" not in {name for group in topology.removable_groups for name in group.consumers}
    for name, reason in (("query", query), ("value", value)):
        assert {topology.group_of(channel).reason for channel in topology.layer(name).out_channels} == {reason}


def test_the_factors_of_equalization_do_not_pass_heads():
    channels = read_layer_paths(heads(), inputs()).scalable_channels()
    assert len(set(channels.outputs["value"])) == 16
    assert not [group for group in channels.groups if group.removable]
