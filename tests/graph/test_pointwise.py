"""Pointwise operations: what they do to zeros and to factors is found by computing them."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bayesbits.graph.exported_program import export, operation
from bayesbits.graph.pointwise import (
    apply_functions,
    ignores_factor,
    is_function,
    is_pointwise,
    keeps_zero,
    passes_factor,
)

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Computed(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


def operations(function: Callable[..., Tensor], inputs: int = 1) -> list[fx.Node]:
    program = export(Computed(function), (X,) * inputs, {})
    return [node for node in program.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("function", "zero", "factor"),
    [
        (F.relu, True, True),
        (lambda x: F.leaky_relu(x, 0.2), True, True),
        (F.gelu, True, False),
        (F.relu6, True, False),
        (F.hardswish, True, False),
        (lambda x: x.clamp(0, 1e3), True, False),
        (lambda x: x.clamp(-1, 1), True, False),
        (torch.sigmoid, False, False),
        (lambda x: x + 1, False, False),
        (lambda x: x * -3, True, True),
        (lambda x: x > 0, True, False),
    ],
)
def test_what_happens_to_zeros_and_factors(function: Callable[[Tensor], Tensor], zero: bool, factor: bool) -> None:
    (node,) = operations(function)
    assert is_pointwise(node)
    assert keeps_zero(node, node.all_input_nodes, [False]) == zero
    assert passes_factor(node, node.all_input_nodes, [False]) == factor


@pytest.mark.parametrize(
    ("function", "foreign", "zero", "factor"),
    [
        (torch.add, [False, False], True, True),
        (torch.add, [False, True], False, False),
        (torch.mul, [False, False], True, False),
        (torch.mul, [False, True], True, True),
        (torch.div, [False, True], True, True),
        (torch.div, [True, False], False, False),
        (torch.maximum, [False, True], False, False),
    ],
)
def test_of_two_operands_one_may_be_foreign(
    function: Callable[..., Tensor], foreign: list[bool], zero: bool, factor: bool
) -> None:
    (node,) = operations(function, inputs=2)
    assert keeps_zero(node, node.all_input_nodes, foreign) == zero
    assert passes_factor(node, node.all_input_nodes, foreign) == factor


def test_functions_of_one_tensor_are_applied_in_order() -> None:
    nodes = operations(lambda x: F.hardtanh(F.gelu(x), -0.1, 0.4) * 2)
    assert [operation(node) for node in nodes] == ["gelu", "hardtanh", "mul"]
    assert all(map(is_function, nodes))
    torch.testing.assert_close(apply_functions(nodes, X), F.hardtanh(F.gelu(X), -0.1, 0.4) * 2)


@pytest.mark.parametrize(
    ("function", "pointwise"),
    [
        (lambda x: x.softmax(1), False),
        (lambda x: x.sum(1), False),
        (lambda x: x * x, True),
        (lambda x: x > 0, True),
    ],
)
def test_what_is_no_function_of_one_float_tensor(function: Callable[[Tensor], Tensor], pointwise: bool) -> None:
    node = operations(function)[-1]
    assert is_pointwise(node) == pointwise
    assert not is_function(node)


@pytest.mark.parametrize(
    ("function", "ignored"),
    [
        (torch.sign, True),
        (lambda x: x > 0, True),
        (lambda x: x > 0.5, True),  # no gradient passes
        (lambda x: torch.heaviside(x, torch.zeros(())), True),
        (F.relu, False),
        (F.gelu, False),
        (lambda x: x.clamp(-1, 1), False),
        (torch.round, False),
        (lambda x: x * 0, False),
        (torch.sigmoid, False),
    ],
)
def test_whether_a_factor_does_not_show(function, ignored):
    node = operations(function)[-1]
    foreign = [not used.meta["val"].dim() for used in node.all_input_nodes]
    assert ignores_factor(node, node.all_input_nodes, foreign) == ignored


def test_a_factor_of_one_operand_alone_may_not_show():
    node = operations(torch.copysign, 2)[-1]
    assert not ignores_factor(node, node.all_input_nodes, [False, True])
    assert ignores_factor(node, node.all_input_nodes, [True, False])
    assert not ignores_factor(node, node.all_input_nodes, [False, False])
