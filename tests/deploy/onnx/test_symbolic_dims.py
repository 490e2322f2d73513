"""Symbolic sizes of an ONNX graph: their values for the examples, and their names."""

from types import SimpleNamespace

import pytest
from onnx import TensorProto, helper

from bayesbits.deploy.onnx.symbolic_dims import example_size, example_symbols, name_sizes
from bayesbits.records.dynamic_size import DynamicSize


def graph():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["s7", 3, "s77"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["s7", "2*s77 + s8"])
    return helper.make_graph([], "graph", [x], [y])


def dim(text):
    return helper.make_tensor_value_info("x", TensorProto.FLOAT, [text]).type.tensor_type.shape.dim[0]


def test_symbols_have_the_sizes_of_the_examples():
    assert example_symbols(graph(), [(4, 3, 9)]) == {"s7": 4, "s77": 9}


@pytest.mark.parametrize(
    ("text", "size"),
    [(5, 5), ("s", 9), ("(((s - 1)//4)) + 1", 3), ("2*s - s % 4", 17), ("-s", -9), ("Max(1, s)", None), ("t", None)],
)
def test_expressions_are_evaluated_where_they_are_simple(text, size):
    assert example_size(dim(text), {"s": 9}) == size


def test_sizes_get_the_names_of_the_network():
    found = graph()
    sizes = (DynamicSize("batch", ((0, 0),)), DynamicSize("length", ((0, 2),)), DynamicSize("none", ((0, 1),)))
    name_sizes(found, SimpleNamespace(sizes=sizes))
    shapes = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*found.input, *found.output)]
    assert shapes == [["batch", 3, "length"], ["batch", "2*length + s8"]]
