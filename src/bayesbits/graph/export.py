"""Calling torch.export on a network, so that the network and the user's process stay as they are.

The network is exported in evaluation mode (no dropout, fixed batch-norm statistics), only to be read: training flags,
parameters, buffers and the random state are the same afterwards. Autocast has no effect meanwhile: the precision does
not matter for reading. Both hold for the calling thread alone, and everything that the network prints is printed.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from bayesbits.graph.flat_network import FlatNetwork, ForwardError
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.torch_private import ignore_autocast, make_functional

# torch.export raises these about its own code, and about tensors that recurrent modules cache and that it puts back.
EXPORT_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The tensor attributes? .* assigned during export",
)
# This logger says that a shape depends on the data; the error that is raised says it too.
EXPORT_LOGGER = "torch.fx.experimental.symbolic_shapes"

Shapes = dict[str, tuple[int, ...]]


def export_functional(
    flat: FlatNetwork, examples: tuple[Tensor, ...], dynamic_shapes: Any = None
) -> tuple[ExportedProgram, Shapes]:
    """Export a network and make it functional, so that no operation changes a tensor in place; see `export_flat`."""
    with torch.random.fork_rng(devices=[]):
        exported, shapes = export_flat(flat, examples, dynamic_shapes)
        with _without_export_messages(), ignore_autocast(), torch.no_grad():
            return make_functional(exported), shapes


def export_flat(
    flat: FlatNetwork, examples: tuple[Tensor, ...], dynamic_shapes: Any = None
) -> tuple[ExportedProgram, Shapes]:
    """Export a network in evaluation mode.

    Args:
        flat: The network.
        examples: A tensor for each tensor that the network takes.
        dynamic_shapes: For each example which of its sizes are dynamic, as torch.export takes it; None: no size is.

    Returns:
        The exported program, and the shapes of those modules' outputs that are one tensor.
    """
    dynamic = None if dynamic_shapes is None else (dynamic_shapes,)
    failure: BaseException | None = None
    with (
        _without_export_messages(),
        evaluation_mode(flat),
        torch.no_grad(),
        output_shapes(flat.network) as shapes,
        ignore_autocast(),
    ):
        try:
            return torch.export.export(flat, examples, dynamic_shapes=dynamic, strict=False), shapes
        except ForwardError as error:
            failure = error.__cause__
    assert failure is not None
    raise failure


@contextmanager
def output_shapes(model: nn.Module) -> Iterator[Shapes]:
    """Collect, while the network runs, which modules return one tensor, and its shape."""
    shapes: Shapes = {}
    handles = []
    for name, module in model.named_modules():

        def record(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            if isinstance(output, Tensor):
                shapes[name] = tuple(output.shape)

        handles.append(module.register_forward_hook(record))
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _without_export_messages() -> Iterator[None]:
    """Without warnings about export itself, and without this thread's records of one logger of torch."""
    thread = threading.get_ident()
    logger = logging.getLogger(EXPORT_LOGGER)

    def of_other_threads(record: logging.LogRecord) -> bool:
        return record.thread != thread

    with warnings.catch_warnings():
        for message in EXPORT_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        logger.addFilter(of_other_threads)
        try:
            yield
        finally:
            logger.removeFilter(of_other_threads)
