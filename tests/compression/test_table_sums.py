"""The least sum of tables, by trying all choices."""

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesbits.compression.table_sums import TableSum


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_no_choices_have_a_smaller_sum(seed):
    choose = random.Random(seed)
    sizes = {name: choose.randint(1, 3) for name in "abcde"}
    scopes = [tuple(choose.sample("abcde", choose.randint(1, 3))) for _ in range(choose.randint(1, 6))]
    tables = [np.random.default_rng(seed).normal(size=[sizes[name] for name in scope]) for scope in scopes]
    names = sorted({name for scope in scopes for name in scope})

    def total(chosen):
        return sum(table[tuple(chosen[name] for name in scope)] for scope, table in zip(scopes, tables, strict=True))

    least, chosen = TableSum(scopes, sizes).least(tables)
    every = [dict(zip(names, one, strict=True)) for one in product(*(range(sizes[name]) for name in names))]
    assert least == pytest.approx(min(map(total, every)))
    assert total(chosen) == pytest.approx(least)


def test_of_equal_sums_the_first_choices_are_taken():
    tables = [np.zeros((3, 2)), np.zeros(2)]
    assert TableSum([("a", "b"), ("b",)], {"a": 3, "b": 2}).least(tables) == (0.0, {"a": 0, "b": 0})
