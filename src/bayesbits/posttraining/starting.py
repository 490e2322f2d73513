"""Where a sweep starts, so that the same call gives the same front again: open gates, and ranges no sweep has moved.

Which ranges those are is remembered with the live network, together with the ranges that the sweep left: where they are
others by now, as calibration or a checkpoint gave them, the sweep starts from these.
"""

import torch
from torch import Tensor

from bayesbits.compression.attachment import Attachment

Ranges = dict[str, Tensor]

_SWEPT = "ranges before and after a sweep"


@torch.no_grad()
def start_afresh(attachment: Attachment) -> Ranges:
    """Open every gate that learns, and take back what sweeps before did to the ranges, which are given out."""
    for quantizer in attachment.quantizers.values():
        if quantizer.mode == "learning":
            quantizer.gates.reopen()
    for gate in attachment.channel_gates.values():
        if not gate.fixed:
            gate.gates.reopen()
    present = _ranges(attachment)
    started, left = attachment.notes.get(_SWEPT, (present, present))
    if all(torch.equal(value, left[name].to(value)) for name, value in present.items()):
        for name, quantizer in attachment.quantizers.items():
            quantizer.log_beta.copy_(started[name])
    return _ranges(attachment)


def end_point(attachment: Attachment, started: Ranges) -> None:
    """Remember what a sweep has made of the ranges that it started from."""
    attachment.notes[_SWEPT] = (started, _ranges(attachment))


def forget(attachment: Attachment) -> None:
    """Let the next sweep start from the present ranges."""
    attachment.notes.pop(_SWEPT, None)


def _ranges(attachment: Attachment) -> Ranges:
    return {name: quantizer.log_beta.detach().clone() for name, quantizer in attachment.quantizers.items()}
