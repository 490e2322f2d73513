"""The constants and nodes of the portable form, compared with the record of the deployed network."""

import numpy as np
import pytest
from onnx import NodeProto, numpy_helper

from bayesbits.deploy.onnx.qdq_nodes import grids_of, holds_whole_type, zero_point
from bayesbits.deploy.onnx.tensor_names import read_tensor_map
from bayesbits.records.integer_network import Grid
from tests.deploy.portable import file, network


def constants(name: str) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in file(name).graph.initializer}


def nodes(name: str) -> dict[str, NodeProto]:
    """The nodes of a file by what they compute."""
    return {output: node for node in file(name).graph.node for output in node.output}


def test_weights_are_signed_codes_with_a_step_for_every_output_channel():
    stored, made = constants("openvino"), nodes("openvino")
    for layer in network("openvino").small.integer.layers:
        codes = stored[f"{layer.name}.weight"]
        dequantizer = made[f"{layer.name}/weight"]
        transposed = layer.kind == "linear"
        own = network("openvino").small.integer.codes(layer.name).numpy()
        assert codes.dtype == np.int8
        assert np.array_equal(codes, own.T if transposed else own)
        assert stored[f"{layer.name}.weight.step"].shape == (layer.weight_shape[0],)
        assert not stored[f"{layer.name}.weight.zero_point"].any()
        assert next(attribute.i for attribute in dequantizer.attribute if attribute.name == "axis") == int(transposed)


def test_biases_are_numbers_on_the_grid_of_the_sums():
    integer = network("openvino").small.integer
    for layer in integer.layers:
        if layer.bias:
            scale = np.float64(integer.grid(layer.input).step) * integer.steps(layer.name).numpy().astype(np.float64)
            numbers = constants("openvino")[f"{layer.name}.bias"]
            assert numbers.dtype == np.float32
            codes, own = np.rint(numbers / scale), integer.bias(layer.name).numpy()
            assert np.allclose(numbers, codes * scale, rtol=1e-6, atol=0)
            assert np.array_equal(own, codes if own.dtype == np.int32 else numbers)


def test_every_code_of_a_file_for_tensorrt_is_signed_with_a_zero_point_of_zero():
    points = [value for name, value in constants("tensorrt").items() if name.endswith("zero_point")]
    assert len(points) > 10
    assert all(value.dtype == np.int8 and not value.any() for value in points)
    assert any(value.dtype == np.uint8 for name, value in constants("openvino").items() if name.endswith("zero_point"))


@pytest.mark.parametrize("name", ["openvino", "tensorrt", "narrow"])
def test_codes_end_where_the_grid_and_the_absorbed_function_end(name):
    integer, made, stored = network(name).small.integer, nodes(name), constants(name)
    tensors = read_tensor_map(file(name))
    clips = 0
    for tensor in tensors:
        grid = grids_of(integer, tensors).get(tensor.value)
        if grid is None:
            continue
        layer = integer.layer(tensor.of) if tensor.kind == "Layer" else None
        low, high = (grid.low, grid.high) if layer is None else (layer.output_low, layer.output_high)
        quantizer = made[made[tensor.value].input[0]]
        clip = made.get(quantizer.input[0])
        if clip is not None and clip.name == f"node/{tensor.value}/clip":
            found = [np.rint(stored[bound] / np.float32(grid.step)) for bound in clip.input[1:]]
            assert found == [low, high]
            clips += 1
        else:
            zero = stored[quantizer.input[2]]
            assert (low + int(zero), high + int(zero)) == (np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max)
    assert (clips > 0) == (name != "openvino"), "8 bits of uint8 need no bounds"


@pytest.mark.parametrize(
    ("grid", "zero", "whole"),
    [
        (Grid("x", 8, False, 0.1, 0, 255, 25.5), np.uint8(0), True),
        (Grid("x", 4, False, 0.1, 0, 15, 1.5), np.uint8(0), False),
        (Grid("x", 8, True, 0.1, -127, 127, 12.7), np.int8(0), False),
        (Grid("x", 8, True, 0.1, -3, 252, 25.2, -0.3), np.uint8(3), True),
    ],
)
def test_types_of_codes(grid, zero, whole):
    assert zero_point(grid) == zero
    assert zero_point(grid).dtype == zero.dtype
    assert holds_whole_type(zero_point(grid), grid.low, grid.high) == whole


def test_layers_are_named_by_their_nodes():
    names = [node.name for node in file("openvino").graph.node]
    assert [name for name in names if not name.startswith("node/")] == ["first", "second", "third", "rows", "head"]
