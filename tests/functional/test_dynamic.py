"""Quantization by the range at run time: the numbers of ONNX's definition, and of onnxruntime bit by bit."""

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor

from bayesbits.functional.dynamic import dynamic_codes, dynamic_ends, dynamic_grid


def quantized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    step, zero_point = dynamic_grid(*dynamic_ends(x))
    return dynamic_codes(x, step, zero_point) + zero_point, step, zero_point


@pytest.fixture(scope="module")
def runtime() -> onnxruntime.InferenceSession:
    outputs = [("codes", TensorProto.UINT8), ("step", TensorProto.FLOAT), ("zero_point", TensorProto.UINT8)]
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeLinear", ["x"], [name for name, _ in outputs])],
        "quantizer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info(name, element, None) for name, element in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_the_example_of_the_definition():
    # The specification's own: a range of -3 to 6 at 8 bits.
    codes, step, zero_point = quantized(torch.tensor([0.0, 2.0, -3.0, -2.5, 1.34, 0.5]))
    assert step.item() == pytest.approx(0.0196078438, rel=1e-7)
    assert zero_point.item() == 153
    assert codes.tolist() == [153, 255, 0, 26, 221, 179]


@pytest.mark.parametrize(
    ("values", "step", "zero_point", "codes"),
    [
        ([1.0, 2.55], 0.01, 0, [100, 255]),  # zero is in the range
        ([-2.55, -1.0], 0.01, 255, [0, 155]),
        ([0.0, 0.0], 1.0, 0, [0, 0]),
        ([-127.5, 127.5], 1.0, 128, [0, 255]),  # both ends are ties, which go to the even code and are clipped
        ([-126.5, 128.5, 0.5, 1.5], 1.0, 126, [0, 254, 126, 128]),
    ],
)
def test_zero_is_a_code_and_ties_go_to_even(values, step, zero_point, codes):
    found = quantized(torch.tensor(values))
    assert found[0].tolist() == codes
    assert (found[1].item(), found[2].item()) == (pytest.approx(step, rel=1e-6), zero_point)


@pytest.mark.parametrize("seed", range(6))
def test_every_code_is_that_of_onnxruntime(runtime, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4096, generator=generator) * 10.0 ** (seed - 3) + [0.0, 3.0, -3.0][seed % 3]
    x = x if seed % 2 else (x * 8).round() / 8  # many ties
    codes, step, zero_point = quantized(x)
    theirs = runtime.run(None, {"x": x.numpy()})
    np.testing.assert_array_equal(codes.numpy().astype(np.uint8), theirs[0])
    assert (step.numpy(), zero_point.numpy().astype(np.uint8)) == (theirs[1], theirs[2])


def test_half_precision_is_quantized_in_float32():
    x = torch.randn(300).to(torch.bfloat16)
    assert all(torch.equal(one, other) for one, other in zip(quantized(x), quantized(x.float()), strict=True))
