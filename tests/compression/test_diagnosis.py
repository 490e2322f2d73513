"""The record of a diagnosis: verdicts in words, a table and JSON."""

import json
import math
from dataclasses import replace

import pytest

from bayesbits.compression.diagnosis import Diagnosis, TensorDiagnosis


def found(task: float, penalty: float, *, bits: int = 8, on: float = 0.7, clipped: float = 0.0) -> TensorDiagnosis:
    widths = (4, 8)
    return TensorDiagnosis(
        name="conv1.weight",
        mode="learning",
        bits=bits,
        beta=1.0,
        clipped=clipped,
        signal_to_noise={2: 6.0, 4: 18.0, 8: math.inf},
        probability_on=dict.fromkeys(widths, on),
        task_gradient=dict.fromkeys(widths, task),
        penalty_gradient=dict.fromkeys(widths, penalty),
    )


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        (found(-0.1, 2.0), "8: the penalty pushes it shut 20x harder than the task holds it open"),
        (found(-3.0, 2.0), "8: the task holds it open 1.5x harder than the penalty pushes it shut"),
        (found(-0.1, 2.0, bits=2), "4: the penalty holds it shut 20x harder than the task pulls it open"),
        (found(-3.0, 2.0, bits=2), "4: the task pulls it open 1.5x harder than the penalty holds it shut"),
        (found(1.0, 2.0), "8: task and penalty both work to shut it"),
        (found(-1.0, -2.0), "8: task and penalty both work to open it"),
        (found(1.0, 0.0), "8: the task pushes it shut, and no penalty is against it"),
        (found(-1.0, 0.0), "8: the task holds it open, and no penalty is against it"),
        (found(0.0, 0.0, on=0.999), "8: gate is saturated open: no gradient reaches it"),
        (found(0.0, 0.0, on=0.001, bits=2), "4: gate is saturated shut: no gradient reaches it"),
        (
            found(0.0, 1.0),
            "8: the loss does not depend on it: no gradient of the task reaches it, and only the penalty moves it",
        ),
        (
            found(1.0, 2.0, clipped=12.0),
            "8: task and penalty both work to shut it; clipped: 12% of values lie outside the range",
        ),
    ],
)
def test_verdicts(case, verdict):
    assert case.verdict == verdict


def test_the_table_is_aligned_and_the_json_is_valid():
    diagnosis = Diagnosis((found(-0.1, 2.0), replace(found(1.0, 0.5), name="input", mode="fixed")))
    lines = str(diagnosis).splitlines()
    assert lines[0].split()[:3] == ["tensor", "bits", "range"]
    assert len({line.rindex("  +") for line in lines[2:4] + lines[5:7]}) == 1
    assert len(lines) == 1 + 2 * 3 + 1
    assert lines[1].startswith("conv1.weight")
    assert lines[1].endswith(diagnosis.tensors[0].verdict)
    assert "inf" in lines[3]
    first = json.loads(diagnosis.to_json())["tensors"][0]
    assert first["signal_to_noise"] == {"2": 6.0, "4": 18.0, "8": None}
    assert first["verdict"] == diagnosis.tensors[0].verdict
