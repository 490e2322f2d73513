"""The two modes in which post-training runs a live network, and the ways back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.compressor import Compressor


@contextmanager
def kept(attachment: Attachment) -> Iterator[None]:
    """Afterwards gates, ranges and modes are what they were before, and ask for gradients as they did."""
    go_back = _way_back(attachment)
    try:
        yield
    finally:
        go_back()


@contextmanager
def undone_on_failure(attachment: Attachment) -> Iterator[None]:
    """Where the block fails or is interrupted, gates, ranges and modes are what they were before it."""
    go_back = _way_back(attachment)
    try:
        yield
    except BaseException:
        go_back()
        raise


def _way_back(attachment: Attachment) -> Callable[[], None]:
    """Brings gates, ranges and modes back to what they are now."""
    state = {name: value.clone() for name, value in attachment.state_dict().items()}
    asked = [(parameter, parameter.requires_grad) for parameter in attachment.parameters()]

    def go_back() -> None:
        attachment.load_state_dict(state)
        for parameter, requires_grad in asked:
            parameter.requires_grad_(requires_grad)

    return go_back


@contextmanager
def in_float(attachment: Attachment) -> Iterator[None]:
    """Inside of the block the live network is the float one: no quantizer rounds, and every channel is there."""
    with kept(attachment):
        for quantizer in attachment.quantizers.values():
            quantizer.turn_off()
        for gate in attachment.channel_gates.values():
            gate.fix(torch.ones_like(gate.gates.logits, dtype=torch.bool))
        yield


@contextmanager
def learning(compressor: Compressor, groups: tuple[str, ...]) -> Iterator[dict[str, list[nn.Parameter]]]:
    """Inside of the block these groups alone learn, and are given out by name; the network stays in evaluation.

    So batch norms keep their statistics, and dropout is out of the way; only gates behave as in training.
    """
    model, attachment = compressor.model, compressor.attachment
    check_evaluation(model, attachment)
    asked = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    flags = [(module, module.training) for module in model.modules()]
    learnable = attachment.learnable()
    learned = {name: list(learnable[name].values()) for name in groups if learnable[name]}
    try:
        for parameter, _ in asked:
            parameter.requires_grad_(False)
        for parameters in learned.values():
            for parameter in parameters:
                parameter.requires_grad_(True)
        attachment.train()
        yield learned
    finally:
        for module, training in flags:
            module.training = training
        for parameter, requires_grad in asked:
            parameter.requires_grad_(requires_grad)
        for parameters in learned.values():
            for parameter in parameters:
                parameter.grad = None


def check_evaluation(model: nn.Module, attachment: Attachment) -> None:
    """Raise where a part of the network would behave as in training."""
    own = set(attachment.modules())
    for name, module in model.named_modules():
        if module.training and module not in own:
            raise ValueError(
                f"{f'the module {name}' if name else 'the network'} is in training mode, in which batch norms would "
                "change their statistics and dropout would disturb: call model.eval() first"
            )
