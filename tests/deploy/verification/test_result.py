"""The result of a verification: its table and its counts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import Kernel, Machine
from bayesbits.deploy.verification.result import (
    ConstantCounts,
    Predictions,
    QuantizedTensor,
    RuntimeTensor,
    SimulatedOutput,
    SimulationCounts,
    Steps,
)
from tests.deploy.exported import exported

FEATURES = torch.zeros(1, 6)


def test_the_output_of_a_regression_is_named_with_its_difference(tmp_path: Path) -> None:
    case = exported(nn.Linear(6, 1), FEATURES, bits=(4,), drop=0.0, count=8)
    found = case.verify(case.write(tmp_path / "network.onnx"))
    assert [(tensor.kind, tensor.output) for tensor in found.outputs] == [("layer", "output")]
    lines = str(found).splitlines()
    ends = [index for index, line in enumerate(lines) if line.startswith("    end to end")]
    assert len(ends) == 2
    assert all(lines[index + 1].startswith("      output: off by ") for index in ends)
    assert "6 weights, 1 bias and 1 grid, all equal" in lines[1]
    assert "48 codes of 1 tensor, fed" in str(found)


@pytest.fixture
def made_by_hand() -> bb.Verification:
    tensors = (QuantizedTensor("a.input", 100, 1, 0, 5), QuantizedTensor("b.input", 50, 0, 2, 6))
    predictions = Predictions(classes=10, compared=8, flipped=3)
    return bb.Verification(
        machine=Machine("a processor", (), "a runtime 1.0"),
        derived=ConstantCounts(1200, 1, 2),
        stored=ConstantCounts(),
        simulated=SimulationCounts(8, tensors, (SimulatedOutput("logits", 80, 1e-7, 2e-6, 3e-2, predictions),)),
        runtime_tensors=(
            RuntimeTensor("a", "layer", True, 1000, 0, 0.0, 0, 0.0, Predictions()),
            RuntimeTensor("b", "output", False, 80, 7, 4e-7, 9, 5e-3, predictions, "logits"),
        ),
        kernels=(Kernel("a", "QGemm", True, None), Kernel("b", "Gemm", False, "it is wide")),
        failure="b.input: wrong",
    )


def test_the_table(made_by_hand: bb.Verification) -> None:
    assert str(made_by_hand).splitlines() == [
        "FAILED: b.input: wrong",
        "a runtime 1.0 on a processor (no integer instructions)",
        "derived again      1,200 weights, 1 bias and 2 grids, all equal",
        "in the file        not all equal, or not compared",
        "simulation         150 codes of 2 tensors, fed the deployed network's own: "
        "1 differs beside a tie, 2 elsewhere",
        "  a.input: 1 of 100 beside a tie",
        "  b.input: 2 of 50 WRONG",
        "  logits: off by 1.0e-07 of the largest, float rounding explains 2.0e-06",
        "    end to end       11 codes differ",
        "      logits: off by 3.0e-02 of the largest; the largest of 10 differs in 3 of 8",
        "exact tensors      1 with 1,000 values, 0 differ",
        "float tensors      1, 7 of 80 values differ, relative error at most 4.0e-07, each fed the same values",
        "    end to end       9 of 1,080 values differ",
        "      logits: off by 5.0e-03 of the largest; the largest of 10 differs in 3 of 8",
        "integer kernels    1 of 2 layers",
        "  b: Gemm, it is wide",
    ]


def test_the_counts(made_by_hand: bb.Verification) -> None:
    assert made_by_hand.integer_layers == ("a",)
    assert [tensor.name for tensor in made_by_hand.outputs] == ["b"]
    assert [tensor.name for tensor in made_by_hand.tied] == ["a.input"]
    assert [tensor.name for tensor in made_by_hand.wrong] == ["b.input"]
    counts = made_by_hand.simulated
    assert (counts.codes, counts.ties, counts.wrong, counts.differing_end_to_end) == (150, 1, 2, 11)


def test_the_json_form_of_the_version_before_is_refused(made_by_hand: bb.Verification) -> None:
    assert bb.Verification.from_json(made_by_hand.to_json()) == made_by_hand
    with pytest.raises(ValueError, match="Verification version 3 cannot be read; this library reads 4"):
        bb.Verification.from_json('{"version": 3, "places": []}')


def test_the_table_of_a_portable_file(made_by_hand: bb.Verification) -> None:
    predictions = Predictions(classes=10, compared=8, flipped=3)
    tensors = (
        RuntimeTensor("a", "layer", False, 1000, 4, 1e-2, 0, 0.0, Predictions(), None, Steps(True, 1.0, 0.004, 0, 0)),
        RuntimeTensor(
            "b", "layer", False, 80, 7, 4e-7, 9, 5e-3, predictions, "logits", Steps(False, 1e-4, 0, 2.5, 0.5)
        ),
    )
    machine = Machine("a processor", ("avx2",), "a runtime 1.0")
    found = replace(made_by_hand, runtime_tensors=tensors, machine=machine, failure=None)
    lines = str(found).splitlines()
    assert lines[:2] == [
        "a runtime 1.0 on a processor (avx2)",
        "  without VNNI: products of unsigned and signed bytes may saturate",
    ]
    assert lines[-6:] == [
        "rounded tensors    1, 4 of 1,000 values differ, by at most 1 steps, each fed the same values",
        "other tensors      1, 7 of 80 values differ, by at most 0.0001 steps, each fed the same values",
        "    end to end",
        "      logits: off by 2.5 steps at most, 0.5 in the mean; the largest of 10 differs in 3 of 8",
        "integer kernels    1 of 2 layers",
        "  b: Gemm, it is wide",
    ]
    assert bb.Verification.from_json(found.to_json()) == found
