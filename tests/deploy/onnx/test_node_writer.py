"""Quantizers, tables and stored weights as nodes, with the values computed by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from onnx import TensorProto

from bayesbits.deploy.onnx.node_writer import NodeWriter, _packed, storage_type
from bayesbits.records.integer_network import Grid, IntegerTable
from tests.deploy.onnx.test_layer_nodes import FLOAT, NETWORK, OUTPUT, UINT8, run


def test_quantizing_rounds_half_to_even_and_clips():
    writer = NodeWriter(NETWORK, compact=False)
    writer.quantize(OUTPUT, "x", "y")
    x = np.array([-30.0, -1.0, 1.0, 3.0, 4.9, 30.0], np.float32)  # in steps of 2: -15, -0.5, 0.5, 1.5, 2.45, 15
    assert (run(writer, x, FLOAT, UINT8).astype(int) - 128).tolist() == [-7, 0, 0, 2, 2, 7]
    wide = NodeWriter(NETWORK, compact=False)
    wide.quantize(Grid("wide", 16, False, 0.5, 0, 65535, 32767.5), "x", "y")
    assert run(wide, np.array([-1.0, 0.75, 1.25, 1e6], np.float32), FLOAT, FLOAT).tolist() == [0, 2, 2, 65535]


@pytest.mark.parametrize("at_once", [False, True])
def test_dequantizing_is_code_times_step(at_once):
    writer = NodeWriter(NETWORK, compact=False)
    writer.dequantize(OUTPUT, "x", "y", at_once=at_once)
    assert ("DequantizeLinear" in [node.op_type for node in writer.nodes]) == at_once
    assert run(writer, np.array([121, 128, 131], np.uint8), UINT8, FLOAT).tolist() == [-14.0, 0.0, 6.0]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(("steps", "row"), [([0.5], [-2.5, 0.0]), ([0.5, 2.0, 0.25], [-1.25, 0.0])])
def test_rows_of_a_table_are_multiplied_by_their_step(steps, row, compact):
    tensors = {"t.codes": torch.tensor([[1, -2], [3, 4], [-5, 0]], dtype=torch.int8), "t.steps": torch.tensor(steps)}
    writer = NodeWriter(SimpleNamespace(tensors=tensors), compact)
    writer.table(IntegerTable("t", "t.weight", 4, 3, 2), "x", "y")
    assert run(writer, np.array([[2, 0]]), TensorProto.INT64, FLOAT).tolist() == [[row, [0.5, -1.0]]]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(("steps", "last"), [([0.5], [-2.5, 0.0]), ([0.5, 2.0, 0.25], [-1.25, 0.0])])
def test_a_weight_of_a_recurrent_layer_is_all_codes_times_their_steps(steps, last, compact):
    tensors = {"t.codes": torch.tensor([[1, -2], [3, 4], [-5, 0]], dtype=torch.int8), "t.steps": torch.tensor(steps)}
    writer = NodeWriter(SimpleNamespace(tensors=tensors), compact)
    writer.matrix(IntegerTable("t", "t.weight", 4, 3, 2, "recurrent"), "w")
    writer.add("Add", ["x", "w"], "y")
    found = run(writer, np.zeros((3, 2), np.float32), FLOAT, FLOAT)
    assert (found[0].tolist(), found[2].tolist()) == ([0.5, -1.0], last)
    wide = NodeWriter(SimpleNamespace(tensors={"t.weight": torch.tensor([[0.3, 7.0]])}), compact)
    wide.matrix(IntegerTable("t", "t.weight", 20, 1, 2, "recurrent"), "w")
    wide.add("Add", ["x", "w"], "y")
    assert run(wide, np.zeros((1, 2), np.float32), FLOAT, FLOAT).tolist() == [[pytest.approx(0.3), 7.0]]


def test_narrow_codes_are_packed_from_the_lowest_bits_on():
    assert [storage_type(bits) for bits in (2, 3, 4, 5, 8)] == [
        TensorProto.INT2, TensorProto.INT4, TensorProto.INT4, None, None,
    ]  # fmt: skip
    assert _packed("w", np.array([-1, 0, 1, 1, -1], np.int8), TensorProto.INT2).raw_data == bytes([0b01010011, 0b11])
    assert _packed("w", np.array([-7, 7, 1], np.int8), TensorProto.INT4).raw_data == bytes([0x79, 0x01])
