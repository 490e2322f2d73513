"""The comparison in steps: what it counts, what it lets pass, and what it raises for."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import Session
from bayesbits.deploy.verification.compare_portable import PortableComparison
from bayesbits.deploy.verification.deployed_program import run_deployed
from bayesbits.deploy.verification.result import Predictions
from tests.deploy.portable import copy_of, file, network

CASE = "openvino"


class Altered(Session):
    """onnxruntime with other results: `steps` more in the first value of a tensor, cut or in the whole file."""

    change: Mapping[str, tuple[str, float]] = {}

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        kind = "cut" if len(self.inputs) > 1 else "whole"
        results = super().run(feeds)
        if kind in self.change:
            name, more = self.change[kind]
            results[name] = results[name] + np.float32(more) * (np.arange(results[name].size) < 5).reshape(
                results[name].shape
            )
        return results


def compare(session: type[Session] = Session, count: int = 4) -> PortableComparison:
    case = network(CASE)
    comparison = PortableComparison(case.small, file(CASE), "a runtime", session)
    inputs = [case.inputs[:count]]
    values, outputs = run_deployed(case.small, inputs, comparison.nodes)
    comparison.compare(inputs, count, values, outputs)
    return comparison


def altered(**change: tuple[str, float]) -> type[Session]:
    return type("AlteredSession", (Altered,), {"change": change})


def test_an_equal_file_is_equal_to_the_last_code():
    found = {tensor.name: tensor for tensor in compare().result()}
    assert found.keys() >= {"first", "second", "third", "rows", "head", "first.input"}
    assert all(tensor.steps.largest < 0.01 for tensor in found.values())
    assert sum(tensor.differing for tensor in found.values() if tensor.steps.on_grid) == 0
    assert found["first"].values == 4 * 16 * 8 * 8
    assert (found["head"].output, found["first"].output) == ("output", None)
    assert found["head"].predictions_end_to_end == Predictions(classes=4, compared=4, flipped=0)


def test_a_step_is_counted_and_passes_and_two_do_not():
    step = network(CASE).small.integer.grid("third.input").step
    comparison = compare(altered(cut=("second.numbers", step)))
    second = next(tensor for tensor in comparison.result() if tensor.name == "second")
    assert (second.differing, second.steps.on_grid) == (5, True)
    assert second.steps.largest == pytest.approx(1, abs=1e-3)
    assert second.steps.mean == pytest.approx(5 / second.values, rel=1e-3)
    with pytest.raises(bb.VerificationError, match=r"second.numbers: 5 of 1,024 values differ in a runtime.* 2 steps"):
        compare(altered(cut=("second.numbers", 2 * step)))


def test_numbers_without_a_grid_have_steps_of_their_largest_value():
    case = network(CASE)
    step = float(case.small(case.inputs[:4]).abs().max()) / 255
    head = next(tensor for tensor in compare(altered(whole=("output", 3 * step))).result() if tensor.name == "head")
    assert head.steps.largest_end_to_end == pytest.approx(3, abs=1e-2)
    assert head.steps.mean_end_to_end == pytest.approx(3 * 5 / 16, abs=1e-2)
    assert head.steps.largest < 0.01, "alone it is right"
    with pytest.raises(bb.VerificationError, match="output: when the whole file runs, a runtime is off by 93"):
        compare(altered(whole=("output", 300 * step)))


@pytest.mark.parametrize("size", [1, 4])
def test_small_batches_are_judged_too(size):
    class WrongForOneSize(Session):
        def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
            results = super().run(feeds)
            return {name: -array if len(array) == size else array for name, array in results.items()}

    with pytest.raises(bb.VerificationError, match=f"output: when the whole file runs in batches of {size}, a runtime"):
        compare(WrongForOneSize, count=6)
    assert compare(WrongForOneSize if size == 4 else Session, count=3).result()


def test_a_file_of_another_network_is_refused():
    other = bb.attach(torch.nn.Sequential(torch.nn.Linear(4, 2)).eval(), torch.ones(2, 4))
    other.calibrate([torch.ones(2, 4)])
    other.fix(bb.Plan.uniform(other.topology, 8, 8))
    with pytest.raises(bb.VerificationError, match="inputs: the ONNX file has x, and the network input"):
        PortableComparison(bb.deploy(other), file(CASE), "a runtime", Session)


def test_a_layer_with_another_window_is_found():
    model = copy_of(file(CASE))
    node = next(node for node in model.graph.node if node.name == "second")
    pads = next(attribute for attribute in node.attribute if attribute.name == "pads")
    pads.ints[:] = [2, 1, 0, 1]  # as large an output, from other positions
    case = network(CASE)
    comparison = PortableComparison(case.small, model, "a runtime", Session)
    values, outputs = run_deployed(case.small, [case.inputs[:4]], comparison.nodes)
    with pytest.raises(bb.VerificationError, match=r"second.numbers: .* values differ in a runtime"):
        comparison.compare([case.inputs[:4]], 4, values, outputs)
