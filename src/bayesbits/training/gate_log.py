"""The gates of a search in `metrics.jsonl`: what they have decided so far, a hundred times over the whole search.

The lines have the event "gates". They are written between steps, and read from the device once; the training step
itself is not touched.
"""

from typing import Any

import torch

from bayesbits.compression.compressor import Compressor

LINES = 100
"""The most lines of a search."""
FEW_EPOCHS = 20
"""With fewer epochs lines are written within epochs too, where the losses are."""


class GateLog:
    """Decides when a line about the gates is due, and what is in it.

    That depends on the position alone, so that a search which was resumed has the same lines.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor
        quantizers = dict(compressor.attachment.quantizers)
        self.quantizers = {
            name: one for name, one in quantizers.items() if one.mode == "learning" and len(one.bits) > 1
        }

    def due(self, number: int, total: int) -> bool:
        """Whether a line is due after `number` of `total` epochs, or of log lines; the last one always is."""
        if not self.quantizers or not 0 < number <= total:
            return False
        return number == total or number * LINES // total > (number - 1) * LINES // total

    def line(self) -> dict[str, Any]:
        """The present decision: counted cost, probabilities of the gates by tensor, bits, and kept channels by layer.

        The probabilities are P(z > 0) of the gate of each width that has one. A width that is not decided by gates, as
        in DQ, has none.
        """
        compressor = self.compressor
        plan = compressor.plan()
        gated = {name: one for name, one in self.quantizers.items() if one.gates.logits.numel()}
        with torch.no_grad():
            found = [one.gates.probability_on() for one in gated.values()]
            numbers = torch.cat(found).tolist() if found else []
        probabilities, start = {}, 0
        for name, one in gated.items():
            widths = one.bits[1:] if one.gates.open_first else one.bits
            own = numbers[start : start + len(widths)]
            probabilities[name] = {str(bits): round(number, 4) for bits, number in zip(widths, own, strict=True)}
            start += len(widths)
        return {
            "relative_bops": compressor.cost(plan).relative_bops,
            "bits": {name: plan.bits[name] for name in self.quantizers},
            "probabilities": probabilities,
            "kept": {name: len(kept) for name, kept in plan.kept.items()},
        }
