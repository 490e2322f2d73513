"""The attached table: an `nn.Embedding` of the user's network whose rows are quantized.

    forward:   embedding(indices, weight)
    attached:  embedding(indices, Q(weight))

The class of the module is exchanged (see `nn.class_exchange`). Rounding is element by element, so that the rows that
are looked up are those of the codes: deployed, codes are gathered, and multiplied by the step of their row.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.nn.calibration_state import CalibrationState
from bayesbits.nn.class_exchange import AttachedModule, exchange_class
from bayesbits.nn.quantizer import Quantizer


@dataclass
class TableParts:
    """What is attached to a table."""

    quantizer: Quantizer | None
    """Quantizes the rows; None: they are looked up as they are."""
    calibration: CalibrationState
    """Shared by all that is attached to the network."""


class AttachedTable(AttachedModule):
    """Mixed into the class of an `nn.Embedding` with the forward of torch."""

    bayesbits_table: TableParts
    weight: nn.Parameter
    padding_idx: int | None
    scale_grad_by_freq: bool

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        parts = self.bayesbits_table
        parts.calibration.check()
        weight = self.weight if parts.quantizer is None else parts.quantizer(self.weight)
        # No sparse gradient: the quantizer, which the gradient goes through, reads all rows.
        return F.embedding(input, weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)

    def release(self) -> None:
        del self.bayesbits_table


def attach_table(module: nn.Module, parts: TableParts) -> None:
    """Quantize the rows of a table, in place."""
    module.bayesbits_table = parts  # type: ignore[assignment]
    exchange_class(module, AttachedTable)
