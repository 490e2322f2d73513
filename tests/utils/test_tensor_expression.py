"""Tensors by how they are computed from parameters."""

import copy
import operator
import pickle

import torch
from torch import nn

from bayesbits.utils.tensor_expression import Step, TensorExpression, Value, operation_key


def scaled(layer: nn.Linear) -> TensorExpression:
    """weight * (largest of the bias), in three steps."""
    return TensorExpression(
        ((layer, "weight"), (layer, "bias")),
        (
            Step("aten.max.dim", (Value(1), 0), {}),
            Step("getitem", (Value(2), 0), {}),
            Step("aten.mul.Tensor", (Value(0), Value(3)), {}),
        ),
    )


def test_an_expression_follows_its_parameters():
    layer = nn.Linear(3, 2)
    expression = scaled(layer)
    assert torch.equal(expression.evaluate(), layer.weight * layer.bias.max())
    layer.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.tensor([2.0, 5.0])})
    assert torch.equal(expression.evaluate(), torch.full((2, 3), 5.0))
    layer.double()
    assert expression.evaluate().dtype is torch.float64


def test_gradients_reach_the_leaves():
    layer = nn.Linear(3, 2)
    scaled(layer).evaluate().sum().backward()
    assert torch.equal(layer.weight.grad, layer.bias.max().detach().expand(2, 3))
    assert bool(layer.bias.grad.any())


def test_a_copy_reads_the_copied_module():
    layer = nn.Linear(3, 2)
    for both in (copy.deepcopy((layer, scaled(layer))), pickle.loads(pickle.dumps((layer, scaled(layer))))):
        with torch.no_grad():
            both[0].weight.zero_()
        assert not both[1].evaluate().any()
    assert bool(scaled(layer).evaluate().any())


def test_without_steps_it_is_the_parameter_itself():
    layer = nn.Linear(3, 2)
    assert TensorExpression(((layer, "weight"),), ()).evaluate() is layer.weight


def test_operations_are_stored_by_name():
    assert operation_key(torch.ops.aten.add.Tensor) == "aten.add.Tensor"
    assert (operation_key(operator.getitem), operation_key(torch.add)) == ("getitem", None)
