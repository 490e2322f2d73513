"""Rows of tables of embeddings and weights of recurrent layers: codes times the step of their row, by hand."""

from dataclasses import replace

import pytest
import torch

from bayesbits.deploy.modules.tables import Lookup, Matrix, make_table
from bayesbits.records.integer_network import IntegerNetwork, IntegerTable
from tests.records.test_integer_network import STRUCTURE

TABLE = IntegerTable("words", "words.weight", bits=4, rows=3, columns=2)
CODES = torch.tensor([[1, -2], [3, 4], [-5, 0]], dtype=torch.int8)


def lookup(**tensors):
    structure = replace(STRUCTURE, tables=(TABLE,))
    return Lookup(IntegerNetwork(structure, {f"words.{name}": value for name, value in tensors.items()}), TABLE)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([0.5], [[[-2.5, 0.0], [0.5, -1.0]]]), ([0.5, 2.0, 0.25], [[[-1.25, 0.0], [0.5, -1.0]]])],
)
def test_codes_are_multiplied_by_the_step_of_the_table_or_of_their_row(steps, expected):
    module = lookup(codes=CODES, steps=torch.tensor(steps))
    assert module(torch.tensor([[2, 0]])).tolist() == expected
    assert repr(module) == "Lookup(3 x 2, 4 bits)"


def test_a_table_without_codes_is_looked_up_as_it_is():
    assert lookup(weight=CODES.float() + 0.5)(torch.tensor([1])).tolist() == [[3.5, 4.5]]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([0.5], [[0.5, -1.0], [1.5, 2.0], [-2.5, 0.0]]), ([0.5, 2.0, 0.25], [[0.5, -1.0], [6.0, 8.0], [-1.25, 0.0]])],
)
def test_a_weight_of_a_recurrent_layer_is_read_whole(steps, expected):
    table = replace(TABLE, kind="recurrent", macs=6)
    structure = replace(STRUCTURE, tables=(table,))
    tensors = {"words.codes": CODES, "words.steps": torch.tensor(steps)}
    module = make_table(IntegerNetwork(structure, tensors), table)
    assert isinstance(module, Matrix)
    assert module().tolist() == expected
    numbers = make_table(IntegerNetwork(structure, {"words.weight": CODES.float() + 0.5}), table)
    assert torch.equal(numbers(), CODES.float() + 0.5)
    assert isinstance(make_table(IntegerNetwork(structure, tensors), TABLE), Lookup)
