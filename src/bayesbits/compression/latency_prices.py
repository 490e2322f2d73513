"""The expected milliseconds with a gradient that leads to the fastest widths from everywhere.

The gradient of the expected milliseconds themselves vanishes or points away where gates stay: from a network in float,
no single tensor can be made narrow with profit, as its layer then has a dequantizer in front and a quantizer behind it,
and computes in float as before. So the gradient is that of a charge, in which every tensor stands by itself, beside the
fastest widths of all others:

    charge = the expected milliseconds at the fastest widths, with the channels that the gates leave
             + sum over tensors and kinds of widths of price(tensor, kind) P(the tensor is of this kind)
    price(tensor, kind) = the milliseconds with this tensor of this kind, less those with all of them at the fastest,
                          with all channels

Prices do not depend on what the other gates say; none is below zero: where the fastest widths are only nearly so, it is
cut off there. Where all gates are 0 or 1, no channel is removed, and at most one tensor has another kind than the
fastest, the charge is the predicted latency. Where no tensor has a choice of kinds, as with widths up to 8 bits, the
charge is the expected milliseconds, and nothing changes.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.fastest_widths import fastest_widths
from bayesbits.compression.penalties import ExpectedLatencyPenalty
from bayesbits.compression.smallest_plan import smallest_plan
from bayesbits.records.latency_table import KINDS, NARROW_BITS, ROUNDED_BITS, LatencyTable, kind_of
from bayesbits.records.plan import Plan


class LatencyPrices(nn.Module):
    """The milliseconds of the present gates; it has no parameters and nothing in a state_dict."""

    prices: Tensor
    """[tensors, kinds]: milliseconds."""

    def __init__(self, attachment: Attachment, table: LatencyTable) -> None:
        super().__init__()
        expected = attachment.expected_latency(table)
        assert isinstance(expected, ExpectedLatencyPenalty)  # the widths of this attachment are learned by gates
        self.expected, self.table = expected, table
        smallest = smallest_plan(attachment)
        fixed = {name: kept for name, kept in smallest.kept.items() if attachment.channel_gates[name].fixed}
        self._fastest = fastest_widths(attachment, table, replace(smallest, kept=fixed))
        self._fastest_ms = self._count(attachment, self._fastest)
        self._names = [name for name, quantizer in attachment.quantizers.items() if quantizer.mode == "learning"]
        prices = [[self._price(attachment, name, kind) for kind in KINDS] for name in self._names]
        device = attachment.cost_model.macs.device
        self.register_buffer("prices", torch.tensor(prices, device=device).reshape(-1, len(KINDS)), persistent=False)

    def _price(self, attachment: Attachment, name: str, kind: int) -> float:
        """0 where the tensor has no width of this kind."""
        width = next((bits for bits in attachment.search_space.widths[name] if kind_of(bits) == kind), None)
        if width is None:
            return 0.0
        changed = replace(self._fastest, bits={**self._fastest.bits, name: width})
        return max(0.0, self._count(attachment, changed) - self._fastest_ms)

    def _count(self, attachment: Attachment, plan: Plan) -> float:
        found = attachment.cost_model.count(plan, self.table).latency_ms
        assert found is not None
        return found

    def forward(self, decided: bool = False) -> Tensor:
        """The expected milliseconds, with the gradient of the charge; `decided`: those of the gates' test-time
        decision, which have none."""
        expected: Tensor = self.expected(decided)
        if decided:
            return expected
        charge = self.charge()
        return charge + (expected - charge).detach()

    def charge(self) -> Tensor:
        """The charge, differentiable in the gates' logits."""
        over, wide, on = self.expected.above()
        zero = torch.zeros_like(next(iter(over.values())))
        at_fastest = [
            {name: zero + float(self._fastest.bits.get(name, 32) > limit) for name in over}
            for limit in (NARROW_BITS, ROUNDED_BITS)
        ]
        base = self.expected.cost_model.latency_ms(self.table, at_fastest[0], at_fastest[1], on)
        if not self._names:
            return base
        above, far = (torch.stack([one[name] for name in self._names]) for one in (over, wide))
        parts = torch.stack([1 - above, above - far, far], dim=1)
        charged: Tensor = base + (parts * self.prices.to(parts.dtype)).sum()
        return charged
