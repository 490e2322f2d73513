"""Modes of modules and gradient flags of parameters, saved and restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """After the block every module is in training or evaluation mode as it was before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode inside the block."""
    with modes_restored(model):
        model.eval()
        yield


@contextmanager
def gradient_flags_restored(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """After the block every parameter asks for gradients as it did before."""
    flags = [(parameter, parameter.requires_grad) for parameter in parameters]
    try:
        yield
    finally:
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)
