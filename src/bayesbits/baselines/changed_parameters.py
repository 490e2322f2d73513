"""Parameters that a method has changed: without its quantizers, the network is not the float network any more.

Methods that bring a quantized network near to the float one take, by default, this network without its quantizers for
that. After a method has rounded the weights or corrected the biases it is another one, and what it computes must not be
aimed at. So the values that a method writes are remembered with the live network, and a later method refuses to go on
without a reference as long as any of them is still there. Copies of the network remember them too; a state_dict does
not.
"""

from collections.abc import Iterable

import torch
from torch import nn

from bayesbits.compression.compressor import Compressor

_CHANGED = "changed parameters"
CORRECTED = "the biases of this network were corrected before"
ROUNDED = "the weights of this network were rounded by a method before"


def remember(compressor: Compressor, parameters: Iterable[nn.Parameter], change: str) -> None:
    """Remember the values that parameters have now, and what was done to them."""
    names = {id(parameter): name for name, parameter in compressor.model.named_parameters()}
    changed = {names[id(parameter)]: (change, parameter.detach().clone()) for parameter in parameters}
    notes = compressor.attachment.notes
    notes[_CHANGED] = {**notes.get(_CHANGED, {}), **changed}


def check_unchanged(compressor: Compressor, advice: str) -> None:
    """Raise where a parameter still has the value that a method gave it."""
    for name, (change, value) in compressor.attachment.notes.get(_CHANGED, {}).items():
        present = compressor.model.get_parameter(name).detach()
        if torch.equal(present, value.to(present)):
            raise ValueError(
                f"{change} ({name}, for one), so that without its quantizers it is not the float network any more: "
                f"{advice}"
            )
