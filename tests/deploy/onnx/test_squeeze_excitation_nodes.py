"""Squeeze and excitation on codes: every code is right, in every form, and only what suits is written so."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import bayesbits as bb
from bayesbits.deploy.onnx.custom_nodes import DOMAIN
from bayesbits.deploy.onnx.node_writer import NodeWriter
from bayesbits.deploy.onnx.runtime import Session, operation_counts
from bayesbits.deploy.onnx.squeeze_excitation_nodes import (
    Codes,
    Gated,
    find_squeeze_excitations,
    write_gated,
    write_mean,
)
from bayesbits.records.integer_network import Grid
from tests.graph.networks import randomize
from tests.graph.test_squeeze_excitation import Squeezed

SIGMOID = Grid("s.output", 8, False, 1 / 255, 0, 255, 1.0)


def unsigned(name: str, step: float, bits: int = 8) -> Grid:
    high = 2**bits - 1
    return Grid(name, bits, False, float(np.float32(step)), 0, high, step * high)


def two_ends(name: str, step: float, zero: int) -> Grid:
    return Grid(name, 8, True, float(np.float32(step)), -zero, 255 - zero, step * (255 - zero), -step * zero)


def run(writer: NodeWriter, given: dict[str, Any], output: str) -> Any:
    values = [helper.make_tensor_value_info(name, TensorProto.UINT8, one.shape) for name, one in given.items()]
    result = helper.make_tensor_value_info(output, TensorProto.UINT8, None)
    graph = helper.make_graph(writer.nodes, "graph", values, [result], list(writer.constants.values()))
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return Session(helper.make_model(graph, opset_imports=domains, ir_version=10)).run(given)[output].astype(np.int64)


def check(found: Any, exact: Any, target: Grid) -> None:
    """Each code is the one nearest to the exact value; beside a tie it may be the other one."""
    low, high = (np.clip(np.rint(exact / target.step + end), target.low, target.high) for end in (-1e-4, 1e-4))
    codes = found - target.zero_point
    assert ((low <= codes) & (codes <= high)).all()


def writer() -> NodeWriter:
    network: Any = None
    return NodeWriter(network, compact=False)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    step=st.floats(0.01, 0.2), zero=st.integers(0, 255), out=st.floats(0.005, 0.2), end=st.integers(0, 255),
    bits=st.sampled_from((4, 8)), row=st.booleans(),
)  # fmt: skip
def test_all_products_of_two_codes(step: float, zero: int, out: float, end: int, bits: int, row: bool) -> None:
    source = two_ends("x.output", step, zero)
    target = two_ends("y.input", out, end) if bits == 8 else unsigned("y.input", out, bits)
    nodes = writer()
    gated = Gated(Codes("image", source), Codes("factors", SIGMOID), 16 if row else None)
    write_gated(nodes, gated, target, ("image", "factors"), "y")
    image = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), (1, 256, 16, 16)).copy()
    factors = np.arange(256, dtype=np.uint8).reshape(1, 256, 1, 1)
    found = run(nodes, {"image": image, "factors": factors}, "y")
    exact = (image.astype(np.int64) - zero) * source.step * (factors / 255)
    check(found, exact, target)
    assert [node.op_type for node in nodes.nodes].count("Expand") == row


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    step=st.floats(0.01, 0.2), zero=st.integers(0, 255), ratio=st.floats(0.3, 30.0), end=st.integers(0, 255),
    height=st.integers(1, 30), width=st.integers(1, 30), seed=st.integers(0, 99),
)  # fmt: skip
def test_means_of_codes(step: float, zero: int, ratio: float, end: int, height: int, width: int, seed: int) -> None:
    source, target = two_ends("x.output", step, zero), two_ends("y.input", step / ratio, end)
    nodes = writer()
    write_mean(nodes, Codes("image", source), target, "image", "y")
    image = np.random.default_rng(seed).integers(0, 256, (2, 37, height, width), np.uint8)
    exact = (image.astype(np.int64) - zero).mean((2, 3), keepdims=True) * source.step
    found = run(nodes, {"image": image}, "y")
    assert found.shape == (2, 37, 1, 1)
    check(found, exact, target)


def trained(image: str, sigmoid: str, seed: int = 0, bits: int = 8) -> Any:
    """A compressor after two steps of training, and inputs."""
    model = randomize(Squeezed(image, sigmoid), seed).eval()
    inputs = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    compressor = bb.attach(model, inputs[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, bits, residual_bits=8))
    optimizer = torch.optim.SGD(compressor.parameter_groups(), lr=0.01)
    for _ in range(2):
        F.cross_entropy(compressor.model(inputs), torch.arange(8) % 3).backward()
        optimizer.step()
    return compressor, 1.5 * inputs


@pytest.mark.parametrize(
    ("image", "sigmoid", "form", "bits", "products"),
    [
        ("norm", "formula", "compact", 4, 1),
        ("hard-swish", "hard sigmoid", "fast", 4, 2),
        ("joined", "clip", "fast", 8, 1),
        ("ghost", "sigmoid", "fast", 8, 1),
    ],
)
def test_trained_networks_are_proven_and_compute_with_codes(
    tmp_path: Any, image: str, sigmoid: str, form: str, bits: int, products: int
) -> None:
    compressor, inputs = trained(image, sigmoid, bits=bits)
    small = bb.deploy(compressor)
    path = tmp_path / "network.onnx"
    bb.export_onnx(small, inputs[:1], path, form)
    found = bb.verify(compressor, small, path, inputs)
    assert found.wrong == ()
    exact = {tensor.name: tensor.exact for tensor in found.runtime_tensors}
    assert (exact["squeeze.input"], exact["last.input"], exact["stem"]) == (False, False, True)
    kernels = operation_counts(path)
    assert (kernels["QLinearGlobalAveragePool"], kernels["QLinearMul"]) == (1, products)


ROWS = {
    "image": ("Dequantize", ["codes"], "x.output", [1, 16, 28, 28]),
    "factors": ("Dequantize", ["gate"], "s.output", [1, 16, 1, 1]),
    "product": ("Mul", ["factors", "image"], "", [1, 16, 28, 28]),
    "rounded": ("Quantize", ["product"], "y.input", [1, 16, 28, 28]),
    "float codes": ("ToFloat", ["codes"], "x.output", [1, 16, 28, 28]),
    "mean": ("ReduceMean", ["float codes", "axes"], "", [1, 16, 1, 1]),
    "means": ("Scale", ["mean"], "x.output", [1, 16, 1, 1]),
    "squeezed": ("Quantize", ["means"], "z.input", [1, 16, 1, 1]),
    "sums": ("Layer", ["squeezed"], "conv", [1, 4, 1, 1]),
}
GRIDS = {
    "x.output": unsigned("x.output", 0.1), "s.output": SIGMOID, "y.input": unsigned("y.input", 0.05),
    "z.input": unsigned("z.input", 0.02), "fine": unsigned("fine", 3e-4), "coarse": unsigned("coarse", 26.0),
    "wide": Grid("wide", 16, False, 0.1, 0, 65535, 6553.5),
}  # fmt: skip
LAYERS = {"conv": SimpleNamespace(kind="conv"), "linear": SimpleNamespace(kind="linear")}


def search(changes: dict[str, Any], returned: tuple[str, ...] = (), axes: tuple[int, ...] = (2, 3)) -> Any:
    nodes, values = [], []
    for name, (kind, inputs, of, shape) in (ROWS | changes).items():
        nodes.append(helper.make_node(kind, inputs, [name], **({"domain": DOMAIN, "of": of} if of else {})))
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    outputs = [value for value in values if value.name in returned]
    constants = [numpy_helper.from_array(np.array(axes), "axes")]
    graph = helper.make_graph(nodes, "graph", [], outputs, constants, value_info=values)
    network: Any = SimpleNamespace(grid=GRIDS.__getitem__, layer=LAYERS.__getitem__)
    return find_squeeze_excitations(graph, network, {})


def test_mean_and_product_are_found() -> None:
    found = search({})
    assert found.means == {"means": Codes("codes", GRIDS["x.output"])}
    image, factors = Codes("codes", GRIDS["x.output"]), Codes("gate", SIGMOID)
    assert found.products == {"product": Gated(image, factors, 28)}
    assert found.inside == {"image", "factors", "product", "float codes", "mean", "means"}
    assert search({}, axes=(-1, 2)).means == found.means
    small = ROWS["image"][:3] + ([1, 16, 14, 14],)
    assert search({"image": small}).products == {"product": Gated(image, factors, None)}
    unknown = ROWS["image"][:3] + ([1, 16, 28, "width"],)
    assert search({"image": unknown}).products["product"].row is None
    more = search({"other": ("Exp", ["image"], "", [1, 16, 28, 28])})
    assert (more.products, more.inside) == (found.products, found.inside - {"image"})


@pytest.mark.parametrize(
    ("changes", "options", "means", "products"),
    [
        ({}, {"returned": ("product",)}, 1, 0),
        ({}, {"returned": ("means",)}, 0, 1),
        ({}, {"returned": ("mean",)}, 0, 1),
        ({}, {"axes": (1, 2)}, 0, 1),
        ({"rounded": ("Quantize", ["product"], "wide", [1, 16, 28, 28])}, {}, 1, 0),
        ({"other": ("Exp", ["product"], "", [1, 16, 28, 28])}, {}, 1, 0),
        ({"factors": ("Sigmoid", ["gate"], "", [1, 16, 1, 1])}, {}, 1, 0),
        ({"factors": ("Dequantize", ["gate"], "s.output", [1, 1, 1, 1])}, {}, 1, 0),
        ({"factors": ("Dequantize", ["gate"], "s.output", [1, 16, 28, 28])}, {}, 1, 0),
        ({"sums": ("Layer", ["squeezed"], "linear", [1, 4])}, {}, 0, 1),
        ({"squeezed": ("Quantize", ["means"], "fine", [1, 16, 1, 1])}, {}, 0, 1),
        ({"squeezed": ("Quantize", ["means"], "coarse", [1, 16, 1, 1])}, {}, 0, 1),
        ({"other": ("Exp", ["mean"], "", [1, 16, 1, 1])}, {}, 0, 1),
    ],
)
def test_other_operations_stay_as_they_are(changes: Any, options: Any, means: int, products: int) -> None:
    found = search(changes, **options)
    assert (len(found.means), len(found.products)) == (means, products)
