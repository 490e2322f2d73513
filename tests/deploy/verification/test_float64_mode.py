"""Code that asks for float32 runs in float64, and tensors that are written into keep their dtype."""

from collections import OrderedDict
from typing import NamedTuple

import torch

from bayesbits.deploy.verification.float64_mode import Float64Mode

THIRD = torch.tensor(1.0) / 3


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_operations_are_computed_in_float64() -> None:
    with Float64Mode():
        quotient = torch.tensor(1.0) / 3
        assert quotient.dtype == torch.float64
        assert quotient.item() == 1 / 3
        assert THIRD.float().dtype == THIRD.to(torch.float32).dtype == THIRD.double().dtype == torch.float64
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.ones(2).dtype == torch.float64
        assert torch.nn.functional.linear(torch.ones(1, 3), torch.full((1, 3), 0.1)).item() != THIRD.item()
    assert (torch.tensor(1.0) / 3).dtype == torch.float32


def test_the_conversion_is_exact() -> None:
    with Float64Mode():
        assert (THIRD * 1).item() == THIRD.item() != 1 / 3


def test_writing_keeps_the_dtype_of_the_tensor() -> None:
    written = torch.zeros(3)
    with Float64Mode():
        written[0] = torch.tensor(1.0) / 3
        written[1:] = torch.ones(2, dtype=torch.float64)
        written.add_(torch.tensor(1.0) / 4)
        written += torch.tensor(0.75)
    assert written.dtype == torch.float32
    assert torch.equal(written, torch.tensor([1 + 1 / 3, 2.0, 2.0]))


def test_integers_stay_integers() -> None:
    with Float64Mode():
        assert (torch.arange(3) + 1).dtype == torch.int64
        assert torch.tensor([1, 2]).sum().dtype == torch.int64


def test_tensors_in_containers_of_any_kind_are_converted() -> None:
    ones = torch.ones(1)
    seen: list[object] = []

    def function(*args: object, **kwargs: object) -> None:
        seen.extend((args, kwargs))

    nested = [ones, (ones, {"inner": ones})], Pair(ones, ones), OrderedDict(last=[ones]), torch.Size((2, 3)), None
    Float64Mode().__torch_function__(function, (), nested, {"out": (ones, torch.float32, "sum")})
    (listed, pair, ordered, size, nothing), kwargs = seen
    assert isinstance(listed, list)
    assert isinstance(pair, Pair)
    assert isinstance(ordered, OrderedDict)
    assert (size, nothing) == (torch.Size((2, 3)), None)
    converted = [listed[0], listed[1][0], listed[1][1]["inner"], *pair, *ordered["last"], kwargs["out"][0]]
    assert [tensor.dtype for tensor in converted] == [torch.float64] * 7
    assert kwargs["out"][1:] == (torch.float64, "sum")


def test_what_is_joined_into_a_written_tensor_has_its_dtype() -> None:
    written = torch.zeros(2)
    with Float64Mode():
        written.index_put_((torch.tensor([1]),), torch.ones(1, dtype=torch.float64))
        joined = torch.cat([THIRD.reshape(1), torch.ones(1)])
    assert torch.equal(written, torch.tensor([0.0, 1.0]))
    assert joined.dtype == torch.float64
