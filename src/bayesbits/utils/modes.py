"""Modes of modules and gradient flags of parameters, saved and restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
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
    """The model in evaluation mode inside the block; it computes as in training but for that.

    Otherwise torch's fused transformer layers would not call their modules, which may be observed, and would set padded
    positions to zero, which neither an attached nor an exported network does.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    with modes_restored(model):
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)


@contextmanager
def gradient_flags_restored(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """After the block every parameter asks for gradients as it did before."""
    flags = [(parameter, parameter.requires_grad) for parameter in parameters]
    try:
        yield
    finally:
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)
