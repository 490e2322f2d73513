"""Sessions, kernels and the machine, on models made by hand."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

from bayesbits.deploy.onnx import runtime
from bayesbits.deploy.onnx.runtime import Kernel, Machine, Session, check_loads, kernels, layer_of, machine


def model(*nodes: onnx.NodeProto) -> ModelProto:
    """From x (2 x 2) to y."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    graph = helper.make_graph(list(nodes), "graph", values[:1], values[1:], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    made.ir_version = 10
    return made


def layer(name: str, kind: str = "linear", arithmetic: str = "integer", reason: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(name=name, kind=kind, arithmetic=arithmetic, reason=reason)


PRODUCT = model(helper.make_node("MatMul", ["x", "w"], ["y"], name="head@2"))


def test_a_session_takes_and_returns_arrays_by_name(tmp_path):
    onnx.save(PRODUCT, str(tmp_path / "model.onnx"))
    x = np.array([[1.0, 0.0], [1.0, 1.0]], np.float32)
    for source in (PRODUCT, PRODUCT.SerializeToString(), tmp_path / "model.onnx"):
        session = Session(source, threads=1)
        assert (session.inputs, session.outputs) == (["x"], ["y"])
        assert session.run({"x": x})["y"].tolist() == [[1.0, 2.0], [4.0, 6.0]]


def test_content_that_cannot_be_loaded_is_refused():
    check_loads(PRODUCT.SerializeToString())
    unknown = model(helper.make_node("NoSuchOperation", ["x"], ["y"]))
    with pytest.raises(RuntimeError, match="onnxruntime cannot load what was exported, so that nothing was written"):
        check_loads(unknown.SerializeToString())


def test_the_layer_of_a_node():
    assert [layer_of(name) for name in ("a.b", "a.b@2", "a.b_token_12", "a.b@3_token_4", "a.b#2", "a.b#2@3")] == [
        "a.b", "a.b", "a.b", "a.b", "a.b#2", "a.b#2",
    ]  # fmt: skip
    parts = ("a.b/part1", "a.b/sum_nchwc", "a.b@2/part3/sum3_nchwc", "a.b/sum")
    assert [layer_of(name) for name in parts] == ["a.b", "a.b", "a.b", "a.b/sum"]


def test_the_kernel_of_every_layer(monkeypatch):
    nodes = [("QGemm", "first"), ("QLinearConv", "twice"), ("Conv", "twice@2_token_1"), ("MatMul", "free"), ("X", "up")]
    graph = SimpleNamespace(node=[SimpleNamespace(op_type=kind, name=name) for kind, name in nodes])
    monkeypatch.setattr(runtime, "_optimized", lambda model: SimpleNamespace(graph=graph))
    free = layer("free", arithmetic="float", reason="the plan leaves it in float")
    network = SimpleNamespace(
        parts=(layer("first"), layer("twice"), free, layer("up", "conv_transpose"), layer("gone"))
    )
    found = kernels(PRODUCT, network)
    assert found[:3] == (
        Kernel("first", "QGemm", True, None),
        Kernel("twice", "Conv", False, "onnxruntime did not fuse it"),
        Kernel("free", "MatMul", False, "the plan leaves it in float"),
    )
    assert "no integer kernel for transposed convolutions" in found[3].reason
    assert found[4] == Kernel("gone", "not found", False, "onnxruntime did not fuse it")


@pytest.mark.parametrize(
    ("output", "operation", "exact"), [(None, "Conv", True), ("y", "Conv", False), (None, "X", False)]
)
def test_whole_numbers_in_float_are_exact_and_no_integer_kernel(output, operation, exact, monkeypatch):
    graph = SimpleNamespace(node=[SimpleNamespace(op_type=operation, name="a")])
    monkeypatch.setattr(runtime, "_optimized", lambda model: SimpleNamespace(graph=graph))
    entry = layer("a", "conv")
    entry.output = output
    (kernel,) = kernels(PRODUCT, SimpleNamespace(parts=(entry,)))
    assert (kernel.integer, kernel.exact) == (False, exact)


def test_the_optimized_graph_is_the_runtimes():
    network = SimpleNamespace(parts=(layer("head"),))
    (kernel,) = kernels(PRODUCT, network)
    assert (kernel.operation, kernel.integer) == ("MatMul", False)


def test_the_machine_names_the_runtime():
    found = machine()
    assert found.runtime == f"onnxruntime {onnxruntime.__version__}"
    assert found.cpu
    assert set(found.integer_instructions) <= {
        "avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8", "asimddp", "i8mm",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("instructions", "saturates"),
    [
        (("avx2",), True),
        (("avx2", "avx512f"), True),
        (("avx2", "avx_vnni"), False),
        (("avx2", "avx512f", "avx512_vnni"), False),
        (("asimddp",), False),
        ((), False),
    ],
)
def test_where_sums_of_bytes_may_saturate(instructions, saturates):
    assert Machine("a processor", instructions, "a runtime").may_saturate == saturates
