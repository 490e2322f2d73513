"""Names of inputs, outputs and mapped tensors of a graph."""

import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper

from bayesbits.deploy.onnx.tensor_names import (
    MappedTensor,
    name_inputs_and_outputs,
    read_form,
    read_tensor_map,
    write_tensor_map,
)


def graph(outputs: tuple[str, ...]) -> GraphProto:
    """b = Neg(a), x = Abs(b), with a constant c; `x` is a name that a user may have given to an input."""
    nodes = [helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Abs", ["b"], ["x"])]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("a", *outputs)}
    constant = helper.make_tensor("c", TensorProto.FLOAT, [1], [2.0])
    return helper.make_graph(nodes, "graph", [values["a"]], [values[name] for name in outputs], [constant])


def described(made: GraphProto) -> list[tuple[str, str, str]]:
    return [(node.op_type, node.input[0], node.output[0]) for node in made.node]


def test_inputs_and_outputs_are_renamed_everywhere_and_others_make_room() -> None:
    made = graph(("x",))
    names = name_inputs_and_outputs(made, ["b"], ["logits"])
    assert names == {"a": "b", "b": "b/inner", "x": "logits"}
    assert [value.name for value in (*made.input, *made.output)] == ["b", "logits"]
    assert described(made) == [("Neg", "b", "b/inner"), ("Abs", "b/inner", "logits")]


def test_an_output_that_another_node_reads_is_copied() -> None:
    made = graph(("b",))
    assert name_inputs_and_outputs(made, ["image"], ["b"]) == {"a": "image", "b": "b/inner"}
    assert described(made) == [("Neg", "image", "b/inner"), ("Abs", "b/inner", "x"), ("Identity", "b/inner", "b")]


def test_an_output_that_is_an_input_a_constant_or_another_output_is_copied() -> None:
    made = graph(("x", "a", "c", "x"))
    name_inputs_and_outputs(made, ["image"], ["one", "same", "constant", "again"])
    assert [value.name for value in made.output] == ["one", "same", "constant", "again"]
    assert described(made)[2:] == [
        ("Identity", "image", "same"),
        ("Identity", "c", "constant"),
        ("Identity", "one", "again"),
    ]


def test_a_graph_with_another_number_of_outputs_is_refused() -> None:
    with pytest.raises(ValueError, match="1 inputs and 1 outputs out of a network with 1 and 2"):
        name_inputs_and_outputs(graph(("x",)), ["image"], ["one", "two"])


def test_the_map_is_read_as_it_was_written() -> None:
    model = ModelProto()
    tensors = (MappedTensor("n", "Layer", "conv", "conv.codes", 128), MappedTensor("m", "Quantize", "g", "x", None))
    write_tensor_map(model, tensors)
    assert read_tensor_map(model) == tensors
    with pytest.raises(ValueError, match=r"was not written by bayesbits\.export_onnx"):
        read_tensor_map(ModelProto())


def test_the_form_is_read_as_it_was_written() -> None:
    model = ModelProto()
    write_tensor_map(model, (), form="qdq")
    assert read_form(model) == "qdq"
    assert read_tensor_map(model) == ()
    other = ModelProto()
    write_tensor_map(other, ())
    assert read_form(other) is None
