"""The findings of a diagnosis: as a record, as a table, and in a sentence for each tensor.

Gradients are those of the loss by the logit of a gate, and an optimizer steps against them: a positive gradient pushes
the gate shut, a negative one pulls it open.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bayesbits.utils.tables import text_table

_SATURATED = 0.05  # a probability so close to 0 or 1
_CLIPPED = 1.0  # percent of the values outside of the range from which on the verdict says so


@dataclass(frozen=True)
class TensorDiagnosis:
    """What was found about one tensor; mappings go from a width in bits to a number.

    Args:
        name: The tensor's name.
        mode: What its quantizer does: "learning", "fixed" or "off".
        bits: The width of the present decision.
        beta: The end of its range; the largest where each channel has one.
        clipped: Percent of the values that lie outside of the range.
        signal_to_noise: In dB, of rounding to each width.
        probability_on: P(z > 0) of the gate of each width that has one.
        task_gradient: The gradient of the task's loss by each gate's logit.
        penalty_gradient: The gradient of the penalty by each gate's logit.
    """

    name: str
    """The tensor's name."""
    mode: str
    """What its quantizer does: "learning", "fixed" or "off"."""
    bits: int
    """The width of the present decision."""
    beta: float
    """The end of its range; the largest where each channel has one."""
    clipped: float
    """Percent of the values that lie outside of the range."""
    signal_to_noise: Mapping[int, float]
    """In dB, of rounding to each width; infinite without any error; empty where no values were seen."""
    probability_on: Mapping[int, float]
    """P(z > 0) of the gate of each width that has one."""
    task_gradient: Mapping[int, float]
    """Of the task's loss by each gate's logit, averaged over batches and draws; positive pushes the gate shut."""
    penalty_gradient: Mapping[int, float]
    """Of the penalty by each gate's logit; positive pushes the gate shut."""

    @property
    def verdict(self) -> str:
        """Why the width is where it is, in a sentence."""
        if self.mode != "learning":
            return f"fixed at {self.bits} bits" if self.mode == "fixed" else "off: it passes unchanged"
        if not self.signal_to_noise:
            return "no values reached it"
        clipped = f"; clipped: {self.clipped:.3g}% of values lie outside the range" if self.clipped >= _CLIPPED else ""
        return self._about_the_gate() + clipped

    def _about_the_gate(self) -> str:
        """About the gate of the present width, or, where that has none, the first that is shut."""
        if not self.probability_on:
            return "it has no gate"
        gate = self.bits if self.bits in self.probability_on else min(self.probability_on)
        is_open = gate == self.bits
        opens, shuts = ("holds it open", "pushes it shut") if is_open else ("pulls it open", "holds it shut")
        task, penalty = self.task_gradient[gate], self.penalty_gradient[gate]
        if task == 0:
            return f"{gate}: {self._without_task(gate, penalty)}"
        if penalty == 0:
            return f"{gate}: the task {shuts if task > 0 else opens}, and no penalty is against it"
        if (task > 0) == (penalty > 0):
            return f"{gate}: task and penalty both work to {'shut' if task > 0 else 'open'} it"
        of_task, of_penalty = (shuts, opens) if task > 0 else (opens, shuts)
        if abs(penalty) > abs(task):
            return f"{gate}: the penalty {of_penalty} {_times(penalty / task)} harder than the task {of_task}"
        return f"{gate}: the task {of_task} {_times(task / penalty)} harder than the penalty {of_penalty}"

    def _without_task(self, gate: int, penalty: float) -> str:
        probability = self.probability_on[gate]
        reason = "the loss does not depend on it"
        if min(probability, 1 - probability) <= _SATURATED:
            reason = f"gate is saturated {'open' if probability > 0.5 else 'shut'}"
        if penalty == 0:
            return f"{reason}: no gradient reaches it"
        return f"{reason}: no gradient of the task reaches it, and only the penalty moves it"


@dataclass(frozen=True)
class Diagnosis:
    """What `Compressor.diagnose` found about every tensor; `print` shows a table with a row for each width.

    Args:
        tensors: The findings by tensor, in the order of the quantizers.

    Example::

        >>> import torch, bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> compressor = bb.attach(model, torch.randn(2, 8), bb.Spec(bits=(2, 4, 8)))
        >>> compressor.calibrate([torch.randn(32, 8)])
        >>> batch = torch.randn(32, 8), torch.randint(4, (32,))
        >>> diagnosis = compressor.diagnose([batch], torch.nn.functional.cross_entropy, mu=0.01)
        >>> [tensor.name for tensor in diagnosis.tensors]
        ['0.weight', '2.weight', '0.input', '2.input']
        >>> diagnosis.tensors[2].verdict
        'fixed at 8 bits'
    """

    tensors: tuple[TensorDiagnosis, ...]
    """The findings by tensor, in the order of the quantizers."""

    def to_dict(self) -> dict[str, Any]:
        """The findings and verdicts as plain values.

        Returns:
            A dict that JSON can hold: infinite numbers are None.
        """
        return {"tensors": [_finite(asdict(tensor)) | {"verdict": tensor.verdict} for tensor in self.tensors]}

    def to_json(self) -> str:
        """The findings and verdicts as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def __str__(self) -> str:
        head = ("tensor", "bits", "range", "clipped %", "width", "SNR dB", "P(on)", "task", "penalty", "verdict")
        rows = [row for tensor in self.tensors for row in _rows(tensor)]
        note = "task, penalty: gradients of the gate's logit; positive pushes it shut, negative pulls it open"
        return f"{text_table(head, rows, left=(0, len(head) - 1))}\n{note}"


def _rows(tensor: TensorDiagnosis) -> list[tuple[str, ...]]:
    """The cells of a row for each width; only the first row says what belongs to the whole tensor."""
    own = (tensor.name, str(tensor.bits), f"{tensor.beta:.4g}", f"{tensor.clipped:.2f}")
    rows: list[tuple[str, ...]] = []
    for width in sorted({*tensor.signal_to_noise, *tensor.probability_on}) or [tensor.bits]:
        cells = (
            _cell(tensor.signal_to_noise, width, ".1f"),
            _cell(tensor.probability_on, width, ".3f"),
            _cell(tensor.task_gradient, width, "+.1e"),
            _cell(tensor.penalty_gradient, width, "+.1e"),
        )
        rows.append((*(("",) * 4 if rows else own), str(width), *cells, "" if rows else tensor.verdict))
    return rows


def _cell(numbers: Mapping[int, float], width: int, form: str) -> str:
    return format(numbers[width], form) if width in numbers else "-"


def _times(ratio: float) -> str:
    ratio = abs(ratio)
    return f"{ratio:.0f}x" if 10 <= ratio < 1e4 else f"{ratio:.2g}x"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
