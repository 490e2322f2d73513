"""The attached table: a module of the user's network whose matrices of weights are quantized, and nothing else.

    forward:   embedding(indices, weight)
    attached:  embedding(indices, Q(weight))

The class of the module is exchanged (see `nn.class_exchange`). Rounding is element by element, so that the rows that
are looked up are those of the codes: deployed, codes are gathered, and multiplied by the step of their row. Recurrent
layers, whose weights are multiplied with float activations, are in `nn.recurrent`.
"""

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.nn.calibration_state import CalibrationState
from bayesbits.nn.class_exchange import AttachedModule, exchange_class
from bayesbits.nn.quantizer import Quantizer


@dataclass
class TableParts:
    """What is attached to a module with tables."""

    calibration: CalibrationState
    """Shared by all that is attached to the network."""
    quantizers: dict[str, Quantizer] = field(default_factory=dict)
    """By the names of the module's parameters; the others are read as they are."""


class AttachedTable(AttachedModule):
    """The base of the mixins for modules with tables."""

    bayesbits_table: TableParts

    def quantized(self, name: str) -> Tensor:
        """The numbers that are read in place of a parameter."""
        quantizer = self.bayesbits_table.quantizers.get(name)
        weight: Tensor = getattr(self, name)
        return weight if quantizer is None else quantizer(weight)

    def release(self) -> None:
        del self.bayesbits_table


class AttachedEmbedding(AttachedTable):
    """Mixed into the class of an `nn.Embedding` with the forward of torch."""

    padding_idx: int | None
    scale_grad_by_freq: bool

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        self.bayesbits_table.calibration.check()
        # No sparse gradient: the quantizer, which the gradient goes through, reads all rows.
        return F.embedding(
            input, self.quantized("weight"), self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )


def attach_table(
    module: nn.Module, name: str, quantizer: Quantizer, calibration: CalibrationState, mixin: type[AttachedTable]
) -> None:
    """Quantize the parameter of this name, in place; a module may have several."""
    if not isinstance(module, AttachedTable):
        module.bayesbits_table = TableParts(calibration)  # type: ignore[assignment]
        exchange_class(module, mixin)
    assert isinstance(module, AttachedTable)
    module.bayesbits_table.quantizers[name] = quantizer
