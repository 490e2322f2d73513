"""The state of the quantizers of a live network: saved and restored, switched to float, and reset for a sweep.

A sweep starts with open gates and with ranges that no earlier sweep has changed, so that the same call gives the same
front again. The attachment remembers the ranges before and after the last sweep. Where the present ranges differ from
those after it, calibration or a checkpoint has set them since, and the next sweep starts from the present ones.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.compressor import Compressor
from bayesbits.utils.modes import gradient_flags_restored, modes_restored

Ranges = dict[str, list[Tensor]]

_SWEPT = "ranges before and after a sweep"


@contextmanager
def quantizers_restored(attachment: Attachment) -> Iterator[None]:
    """After the block gates, ranges, modes of quantizers and gradient flags are as they were before."""
    restore = _save(attachment)
    try:
        yield
    finally:
        restore()


@contextmanager
def quantizers_restored_on_failure(attachment: Attachment) -> Iterator[None]:
    """If the block raises, gates, ranges, modes of quantizers and gradient flags are as they were before."""
    restore = _save(attachment)
    try:
        yield
    except BaseException:
        restore()
        raise


def _save(attachment: Attachment) -> Callable[[], None]:
    """A function that restores the present state of the quantizers."""
    state = {name: value.clone() for name, value in attachment.state_dict().items()}
    flags = [(parameter, parameter.requires_grad) for parameter in attachment.parameters()]

    def restore() -> None:
        attachment.load_state_dict(state)
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)

    return restore


@contextmanager
def as_float_network(attachment: Attachment) -> Iterator[None]:
    """Inside the block the live network is the float one: no quantizer rounds, and no channel is pruned."""
    with quantizers_restored(attachment):
        for quantizer in attachment.quantizers.values():
            quantizer.turn_off()
        for gate in attachment.channel_gates.values():
            gate.fix(torch.ones_like(gate.may_close))
        yield


@contextmanager
def only_learning(compressor: Compressor, groups: tuple[str, ...]) -> Iterator[dict[str, list[nn.Parameter]]]:
    """Inside the block only the parameters of these groups require gradients; yields them by group name.

    The network stays in evaluation mode, so that batch norms keep their statistics and dropout does nothing. Only the
    gates are in training mode.
    """
    model, attachment = compressor.model, compressor.attachment
    check_evaluation_mode(model, attachment)
    learnable = attachment.learnable()
    learned = {name: list(learnable[name].values()) for name in groups if learnable[name]}
    with modes_restored(model), gradient_flags_restored(model.parameters()):
        model.requires_grad_(False)
        for parameters in learned.values():
            for parameter in parameters:
                parameter.requires_grad_(True)
        attachment.train()
        try:
            yield learned
        finally:
            for parameters in learned.values():
                for parameter in parameters:
                    parameter.grad = None


def check_evaluation_mode(model: nn.Module, attachment: Attachment) -> None:
    """Raise if a part of the network other than its quantizers is in training mode."""
    own = set(attachment.modules())
    for name, module in model.named_modules():
        if module.training and module not in own:
            raise ValueError(
                f"{f'the module {name}' if name else 'the network'} is in training mode, in which batch norms change "
                "their statistics and dropout drops activations: call model.eval() first"
            )


@torch.no_grad()
def reset_for_sweep(attachment: Attachment) -> Ranges:
    """Open every gate that learns, undo what the last sweep did to the ranges, and return the ranges."""
    for quantizer in attachment.quantizers.values():
        if quantizer.mode == "learning":
            quantizer.gates.reopen()
    for gate in attachment.channel_gates.values():
        if not gate.fixed:
            gate.gates.reopen()
    present = _ranges(attachment)
    before, after = attachment.notes.get(_SWEPT, (present, present))
    if all(_equal(ends, after[name]) for name, ends in present.items()):
        for name, quantizer in attachment.quantizers.items():
            for parameter, value in zip(quantizer.range_parameters(), before[name], strict=True):
                parameter.copy_(value)
    return _ranges(attachment)


def remember_sweep(attachment: Attachment, before: Ranges) -> None:
    """Remember the ranges from which a sweep started together with the present ones."""
    attachment.notes[_SWEPT] = (before, _ranges(attachment))


def forget_sweep(attachment: Attachment) -> None:
    """Let the next sweep start from the present ranges."""
    attachment.notes.pop(_SWEPT, None)


def _ranges(attachment: Attachment) -> Ranges:
    """The parameters of every range, by the tensor's name."""
    return {
        name: [parameter.detach().clone() for parameter in quantizer.range_parameters()]
        for name, quantizer in attachment.quantizers.items()
    }


def _equal(present: list[Tensor], after: list[Tensor]) -> bool:
    return len(present) == len(after) and all(
        torch.equal(value, then.to(value)) for value, then in zip(present, after, strict=True)
    )
