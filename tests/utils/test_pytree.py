"""Trees: the form of any containers, and back."""

from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesbits.utils.pytree import Tree, describe, tensors_in

TENSORS = st.builds(torch.zeros, st.just(2))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3), TENSORS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 3)), inner, max_size=3),
    ),
    max_leaves=8,
)


def built(data: dict[str, Any]) -> Tree:
    return Tree(**{**data, "keys": tuple(data["keys"]), "items": tuple(map(built, data["items"]))})


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    tensors: list[torch.Tensor] = []
    form = describe(value, tensors)
    again = form.build(tensors)
    assert describe(again, []) == form == built(asdict(form))
    assert [id(tensor) for tensor in tensors_in(again)] == [id(tensor) for tensor in tensors]
    assert [id(tensor) for _, tensor in form.read(value, "x")] == [id(tensor) for tensor in tensors]
    assert len(form.tensors()) == len(tensors)


def test_true_is_not_one() -> None:
    for value, other in ((True, 1), (1, True), (0, None), ("1", 1), (False, 0.0)):
        with pytest.raises(ValueError, match="it was given"):
            list(describe(value, []).read(other, "flag"))
    assert list(describe(1, []).read(1.0, "number")) == []


@dataclass(slots=True)
class Slots:
    first: Any
    second: Any = None


def test_attributes_in_slots_are_read() -> None:
    x, y = torch.zeros(2), torch.ones(2)
    value = Slots([x], y)
    form = describe(value, [])
    assert (form.kind, form.keys) == ("object", ("first", "second"))
    assert [id(tensor) for _, tensor in form.read(value, "x")] == [id(x), id(y)]


def test_tensors_in_sets_are_refused() -> None:
    for value in ({torch.zeros(2)}, [frozenset({torch.zeros(2)})]):
        with pytest.raises(TypeError, match=r"tensors in a set.*use a tuple"):
            describe(value, [])
    assert describe({1, 2}, []).kind == "other"


def test_a_tensor_that_lies_there_twice_is_there_twice() -> None:
    x = torch.zeros(2)
    form = describe({"a": x, "b": (x,)}, [])
    assert form.tensors() == [("a",), ("b", "0")]
