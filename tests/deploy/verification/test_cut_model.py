"""A cut file: every layer reads what it is given, in integers, and computes what it computed before."""

import numpy as np
import onnx
import pytest

from bayesbits.deploy.onnx import openvino_runtime, runtime
from bayesbits.deploy.onnx.openvino_runtime import INTEGERS, WEIGHTED
from bayesbits.deploy.onnx.tensor_names import read_tensor_map
from bayesbits.deploy.verification.cut_model import cut_model, given
from tests.deploy.portable import file, network

RANKS = {"first": 4, "second": 4, "third": 4, "rows": 3, "head": 2}


@pytest.fixture(scope="module")
def cut() -> onnx.ModelProto:
    model = file("narrow")
    tensors = read_tensor_map(model)
    owners = {tensor.value: tensor.of.split(".")[0] for tensor in tensors}
    ranks = {value: RANKS.get(owner, 4) for value, owner in owners.items()}
    ranks |= {value: 3 for value in ranks if value.startswith("rows.input")}
    return cut_model(model, tensors, ranks)


@pytest.fixture(scope="module")
def values() -> dict[str, np.ndarray]:
    """What the whole file computes: its inputs, and all tensors of the map."""
    model = onnx.ModelProto()
    model.CopyFrom(file("narrow"))
    names = [tensor.value for tensor in read_tensor_map(model) if tensor.value != "output"]
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    feeds = {"x": network("narrow").inputs[:3].numpy()}
    return feeds | runtime.Session(model).run(feeds)


def feeds_of(cut: onnx.ModelProto, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [value.name for value in cut.graph.input]
    return {name: values[name.removesuffix("/given")] for name in names}


def test_fed_its_own_values_a_cut_file_computes_the_same(cut, values):
    found = runtime.Session(cut).run(feeds_of(cut, values))
    assert found.keys() == {tensor.value for tensor in read_tensor_map(file("narrow"))}
    for name, value in found.items():
        assert np.abs(value - values[name]).max() <= 1e-5 * np.abs(values[name]).max(), name


def test_a_tensor_depends_on_what_it_is_given_alone(cut, values):
    session, feeds = runtime.Session(cut), feeds_of(cut, values)
    before = session.run(feeds)
    after = session.run(feeds | {given("second.numbers"): 0 * values["second.numbers"]})
    assert {name for name in before if not np.array_equal(before[name], after[name])} == {"third.numbers"}


def test_layers_of_a_cut_file_still_run_in_integers(cut, values):
    feeds = feeds_of(cut, values)
    operations = openvino_runtime.Session(cut).operations({name: array.shape for name, array in feeds.items()})
    assert [one.precision in INTEGERS for one in operations if one.kind in WEIGHTED] == [True] * 5
