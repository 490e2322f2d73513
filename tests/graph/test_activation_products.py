"""Products of two activations are found; products with parameters, of masks or of constants are not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesbits as bb
from tests.graph.attention import HEADS, KINDS, POSITIONS, WIDTH, attention, examples


def read(model, inputs):
    return bb.trace(model, inputs, activation_products=True)


@pytest.mark.parametrize("kind", KINDS)
def test_both_products_of_attention_are_found_in_every_form(kind):
    topology = read(attention(kind), examples())
    macs = 3 * HEADS * POSITIONS * POSITIONS * (WIDTH // HEADS)
    assert [product.macs for product in topology.products] == [macs, macs]
    assert topology.unsupported == ()
    assert topology.macs == bb.trace(attention(kind), examples()).macs
    assert [topology.activation(product.left).known_range for product in topology.products] == [None, 1.0]
    assert [topology.activation(product.right).known_range for product in topology.products] == [None, None]


def test_products_and_their_operands_are_named_after_module_and_function():
    topology = read(nn.Sequential(attention("sdpa"), attention("matmul")), examples())
    assert [(product.name, product.left, product.right) for product in topology.products] == [
        ("0.sdpa.scores", "0.sdpa.query", "0.sdpa.key"),
        ("0.sdpa.context", "0.sdpa.probabilities", "0.sdpa.value"),
        ("1.matmul", "1.matmul.left", "1.matmul.right"),
        ("1.matmul_2", "1.matmul_2.left", "1.matmul_2.right"),
    ]
    assert topology.activation("0.sdpa.key").consumers == ("0.sdpa.scores",)


class Chain(nn.Module):
    """A product of the network's input with a layer and a table, and one of that with its exponential."""

    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, ids, x):
        first = (self.mix(x) + self.words(ids)) @ x.transpose(1, 2)
        return first @ first.exp()


@pytest.mark.parametrize(
    ("model", "inputs", "sources"),
    [
        (attention("sdpa"), examples(), [{"qkv"}, {"sdpa.scores", "qkv"}]),
        (attention("matmul"), examples(), [{"qkv"}, {"matmul", "qkv"}]),
        (Chain(), (torch.tensor([[0, 1]]), torch.randn(1, 2, 4)), [{"mix", "words"}, {"matmul"}]),
    ],
)  # fmt: skip
def test_a_product_knows_what_its_operands_are_computed_from(model, inputs, sources):
    assert [set(product.sources) for product in read(model, inputs).products] == sources


def test_they_are_unsupported_unless_they_are_asked_for():
    topology = bb.trace(attention("matmul"), examples())
    assert topology.products == ()
    assert [entry.what for entry in topology.unsupported] == ["attention product"] * 2
    assert "matmul.left" not in {activation.name for activation in topology.activations}


def test_a_module_that_runs_twice_has_one_product_with_two_calls():
    shared = attention("sdpa")
    topology = read(nn.Sequential(shared, shared), examples())
    once = read(nn.Sequential(attention("sdpa")), examples())
    assert [product.calls for product in topology.products] == [2, 2]
    assert [product.macs for product in topology.products] == [2 * product.macs for product in once.products]


class Others(nn.Module):
    """Products that are none of two activations."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.table = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("turn", torch.randn(4, 4))

    def forward(self, x, tokens):
        ids = tokens[:, :4].float()
        mask = ids.unsqueeze(2) @ ids.unsqueeze(1)  # of token ids alone
        return self.layer(x) @ self.table + mask + x @ self.turn + torch.einsum("...ij,...jk->...ik", x, x)


def test_products_with_parameters_masks_and_other_forms_are_left_alone():
    topology = read(Others(), (torch.randn(2, 4, 4), torch.ones(2, 6, dtype=torch.long)))
    assert topology.products == ()
    assert [layer.name for layer in topology.layers] == ["layer", "table"]
    assert sum(entry.macs > 0 for entry in topology.unsupported) == 3


class Square(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x @ x.transpose(1, 2)) + F.scaled_dot_product_attention(x, x, x)


class Queries(nn.Module):
    """Learned queries, as in the first decoder layer of DETR: a layer reads parameters alone."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.table) @ x.transpose(1, 2)


def test_a_layer_of_parameters_alone_computes_an_operand():
    (product,) = read(Queries(), torch.randn(2, 5, 4)).products
    assert (product.name, product.macs) == ("matmul", 2 * 3 * 4 * 5)


class TwoTowers(nn.Module):
    """The scores of users and items, both of which are looked up."""

    def __init__(self):
        super().__init__()
        self.users, self.items, self.head = nn.Embedding(5, 4), nn.Embedding(6, 4), nn.Linear(3, 2)

    def forward(self, user, item):
        return self.head(self.users(user) @ self.items(item).transpose(1, 2))


def test_a_product_of_two_lookups_is_one():
    topology = read(TwoTowers(), (torch.tensor([[0, 1]]), torch.tensor([[2, 3, 4]])))
    assert [(product.name, product.sources, product.macs) for product in topology.products] == [
        ("matmul", ("items", "users"), 2 * 3 * 4)
    ]
    assert topology.unsupported == ()


def test_an_operand_that_is_the_networks_input_is_one():
    topology = read(Square(), torch.randn(2, 4, 4))
    given = {activation.name: activation.network_input for activation in topology.activations}
    assert given["matmul.left"]
    assert given["matmul.right"]
    assert given["sdpa.query"]
    assert not given["sdpa.probabilities"]
    assert bb.trace(Square(), torch.randn(2, 4, 4)).macs == topology.macs


def test_a_topology_of_before_loads_and_a_new_one_comes_back():
    import json

    topology = read(attention(), examples())
    assert bb.Topology.from_json(topology.to_json()) == topology
    before = json.loads(bb.trace(attention(), examples()).to_json())
    del before["products"]
    for activation in before["activations"]:
        del activation["known_range"]
    assert bb.Topology.from_json(json.dumps(before)) == bb.trace(attention(), examples())
