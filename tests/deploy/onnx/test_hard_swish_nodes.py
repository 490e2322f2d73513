"""Hard-swish as a product of integers: every code is right, in every form, and a mistake in the file is found."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.custom_nodes import DOMAIN
from bayesbits.deploy.onnx.hard_swish_nodes import find_integer_hard_swishes, steps_below_zero, write_hard_swish
from bayesbits.deploy.onnx.node_writer import NodeWriter
from bayesbits.deploy.onnx.runtime import Session, operation_counts
from bayesbits.nn.hard_swish_quantizer import HardSwishQuantizer
from bayesbits.records.integer_network import Grid
from tests.graph.networks import randomize
from tests.graph.test_hard_swish import FORMS

NAMES = tuple(FORMS)


def grid(beta: float) -> Grid:
    """The grid of codes in front of a hard-swish."""
    quantizer = HardSwishQuantizer()
    quantizer.set_range(beta, alpha=-3.0)
    quantizer.fix(8)
    low, high = quantizer.code_bounds()
    return Grid("x.output", 8, True, quantizer.step().item(), low, high, quantizer.beta.item(), quantizer.alpha.item())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(beta=st.floats(0.3, 90.0), step=st.floats(0.005, 0.3), bits=st.sampled_from((4, 8)), signed=st.booleans())
def test_all_256_codes(beta: float, step: float, bits: int, signed: bool) -> None:
    """Each is the one nearest to the exact value; beside a tie it may be the other one."""
    source = grid(beta)
    high = 2 ** (bits - signed) - 1
    target = Grid("y.input", bits, signed, float(np.float32(step)), -high if signed else 0, high, step * high)
    network: Any = None
    writer = NodeWriter(network, compact=False)
    write_hard_swish(writer, source, target, "codes", "y")
    values = [helper.make_tensor_value_info(name, TensorProto.UINT8, [256]) for name in ("codes", "y")]
    graph = helper.make_graph(writer.nodes, "graph", values[:1], values[1:], list(writer.constants.values()))
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    session = Session(helper.make_model(graph, opset_imports=domains, ir_version=10))
    found = session.run({"codes": np.arange(256, dtype=np.uint8)})["y"].astype(np.int64) - target.zero_point
    x = (np.arange(256) - source.zero_point) * source.step
    exact = x * np.clip(x + 3, 0, 6) / 6 / target.step
    low_code, high_code = (np.clip(np.rint(exact + end), target.low, target.high) for end in (-1e-4, 1e-4))
    assert ((low_code <= found) & (found <= high_code)).all()
    assert (low_code == high_code).mean() > 0.9


def test_grids_that_start_elsewhere_are_not_suitable() -> None:
    good = grid(5.0)
    assert steps_below_zero(good) == 95
    step = good.step * (1 + 1e-5)
    assert steps_below_zero(Grid(good.name, 8, True, step, -95, 160, good.beta, good.alpha)) is None
    assert steps_below_zero(Grid(good.name, 8, True, good.step, -95, 100, good.beta, good.alpha)) is None
    assert steps_below_zero(Grid(good.name, 8, True, good.step, -127, 127, good.beta)) is None


class Swished(nn.Module):
    """Convolutions with a hard-swish between them, and one that a mean and a product read."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.wide, self.deep = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last, self.head = nn.Conv2d(8, 4, 1), nn.Linear(4, 3)
        self.first, self.second = FORMS[first], FORMS[second]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.norm(self.stem(x)))
        x = F.hardswish(self.deep(self.second(self.wide(x))))
        x = self.last(x * F.hardsigmoid(x.mean((2, 3), keepdim=True)))
        return self.head(x.mean((2, 3)))


def compressed(first: str = "function", second: str = "product divided", seed: int = 0, bits: int = 8) -> Any:
    """A compressor after two steps of training, and inputs."""
    model = randomize(Swished(first, second), seed).eval()
    inputs = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    compressor = bb.attach(model, inputs[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, bits, residual_bits=8))
    optimizer = torch.optim.SGD(compressor.parameter_groups(), lr=0.01)
    before = [quantizer.log_beta.item() for quantizer in hard_swish_quantizers(compressor)]
    for _ in range(2):
        F.cross_entropy(compressor.model(inputs), torch.arange(8) % 3).backward()
        optimizer.step()
    assert before != [quantizer.log_beta.item() for quantizer in hard_swish_quantizers(compressor)]
    return compressor, 1.5 * inputs


def hard_swish_quantizers(compressor: bb.Compressor) -> list[HardSwishQuantizer]:
    return [one for one in compressor.attachment.quantizers.values() if isinstance(one, HardSwishQuantizer)]


@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    first=st.sampled_from(NAMES), second=st.sampled_from(NAMES), seed=st.integers(0, 99), bits=st.sampled_from((4, 8)),
    form=st.sampled_from(("fast", "compact")),
)  # fmt: skip
def test_trained_networks_are_proven_and_multiply_integers(tmp_path_factory, first, second, seed, bits, form) -> None:
    compressor, inputs = compressed(first, second, seed, bits)
    path = tmp_path_factory.mktemp("swished") / "network.onnx"
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs[:1], path, form)
    found = bb.verify(compressor, small, path, inputs)
    assert found.wrong == ()
    assert {tensor.name: tensor.exact for tensor in found.runtime_tensors}["wide.input"] is False
    suitable = [
        steps_below_zero(one) for one in small.integer.structure.grids if one.name in {"norm.output", "wide.output"}
    ]
    kernels = operation_counts(path)
    assert kernels["QLinearMul"] == sum(steps is not None for steps in suitable) > 0
    assert kernels["QLinearConv"] == 4


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compressor, inputs = compressed()
    path = tmp_path_factory.mktemp("written") / "network.onnx"
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs[:1], path)
    return partial(bb.verify, compressor, small), inputs, onnx.load(path)


@pytest.mark.parametrize(
    ("constant", "change", "owner"),
    [
        ("norm.output.hard_swish.step", lambda step: step * np.float32(1 + 1e-6), "norm.output"),
        ("norm.output.hard_swish.high", lambda code: code - 1, "norm.output"),
        ("no zero point", lambda code: code + 1, "wide.input"),
    ],
)
def test_a_changed_constant_is_found(written: Any, constant: str, change: Any, owner: str, tmp_path: Any) -> None:
    verify, inputs, model = written
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    tensor = next(tensor for tensor in changed.graph.initializer if tensor.name == constant)
    value = np.asarray(change(numpy_helper.to_array(tensor)[()]), numpy_helper.to_array(tensor).dtype)
    tensor.CopyFrom(numpy_helper.from_array(value, constant))
    onnx.save(changed, tmp_path / "changed.onnx")
    with pytest.raises(bb.VerificationError, match=f"^{owner}"):
        verify(tmp_path / "changed.onnx", inputs)


@pytest.mark.parametrize(
    ("position", "name"), [(3, "norm.codes"), (4, "norm.output.step"), (7, "wide.output.zero_point")]
)
def test_a_product_that_reads_something_else_is_found(written: Any, position: int, name: str, tmp_path: Any) -> None:
    verify, inputs, model = written
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    product = next(node for node in changed.graph.node if node.op_type == "QLinearMul")
    product.input[position] = product.input[0] if position == 3 else name
    onnx.save(changed, tmp_path / "changed.onnx")
    with pytest.raises(bb.VerificationError, match=r"^wide\.input: the ONNX file"):
        verify(tmp_path / "changed.onnx", 0.01 * inputs)  # the bound is not reached


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"returned": ["h"]}, False),
        ({"returned": ["numbers"]}, False),
        ({"more": [("Exp", "h", "")]}, False),
        ({"more": [("Exp", "numbers", "")]}, False),
        ({"more": [("Quantize", "h", "y.input")]}, True),
        ({"more": [("Quantize", "h", "wide.input")]}, False),
        ({"source": "y.input"}, False),
    ],
)
def test_only_codes_between_quantizers_are_multiplied(changes: dict[str, Any], found: bool) -> None:
    rows = [
        ("Dequantize", "codes", changes.get("source", "x.output"), "numbers"),
        ("HardSwish", "numbers", "", "h"),
        ("Quantize", "h", "y.input", "quantized"),
        *((kind, x, of, f"more{x}") for kind, x, of in changes.get("more", [])),
    ]
    nodes = [
        helper.make_node(kind, [x], [y], **({"domain": DOMAIN, "of": of} if of else {})) for kind, x, of, y in rows
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in changes.get("returned", ())]
    grids = {
        "x.output": grid(5.0),
        "y.input": Grid("y.input", 8, False, 0.1, 0, 255, 25.5),
        "wide.input": Grid("wide.input", 16, False, 0.1, 0, 65535, 6553.5),
    }
    network: Any = SimpleNamespace(grid=grids.__getitem__)
    swishes = find_integer_hard_swishes(helper.make_graph(nodes, "graph", [], outputs), network)
    assert swishes.codes == ({"h": ("codes", grids["x.output"])} if found else {})
    assert swishes.inside == ({"h", "numbers"} if found else set())
