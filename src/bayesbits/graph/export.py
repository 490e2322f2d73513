"""Calling torch.export on a network, so that the network and the user's process stay as they are.

The network is exported in evaluation mode (no dropout, fixed batch-norm statistics), only to be read: training flags,
parameters, buffers and the random state are the same afterwards. Autocast has no effect meanwhile: the precision does
not matter for reading. Both hold for the calling thread alone, and everything that the network prints is printed.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from bayesbits.graph.flat_network import FlatNetwork, ForwardError
from bayesbits.utils.batches import at_least_two_examples
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


def export_dynamic_batch(
    flat: FlatNetwork, export: Callable[[tuple[Tensor, ...], Any], ExportedProgram]
) -> ExportedProgram:
    """Export a network for batches of any size, or of the examples' size where its code does not allow any other.

    It is not known which inputs have the batch along their first dimension. So every first size is tried as the size of
    the batch, in the order of the inputs, until one stays dynamic.

    Args:
        flat: The network.
        export: Takes examples and their dynamic shapes, and exports the network with them.
    """
    examples = flat.examples()
    for size in dict.fromkeys(len(x) for x in examples if x.dim()):
        try:
            exported = export(*mark_batch(examples, size))
            if any(has_dynamic_batch(exported)):
                return exported
        except Exception:  # torch.export raises many kinds of errors; with fixed sizes it was read when attaching
            continue
    return export(examples, None)


def mark_batch(examples: tuple[Tensor, ...], size: int) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any] | None, ...]]:
    """The examples and their dynamic shapes, where a first dimension of this size is that of the batch."""
    batched = [bool(x.dim()) and len(x) == size for x in examples]
    several = tuple(at_least_two_examples(x) if own else x for x, own in zip(examples, batched, strict=True))
    return several, tuple({0: Dim.AUTO} if own else None for own in batched)


def has_dynamic_batch(exported: ExportedProgram) -> tuple[bool, ...]:
    """For each tensor that the user gives, whether the exported program takes it with any first size.

    The network's code may have fixed the size of the batch. torch.export then has a number there, which may have the
    class of a symbol.
    """
    from torch.fx.experimental.symbolic_shapes import is_concrete_int  # here, as it imports sympy: half a second

    names = exported.graph_signature.user_inputs
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    values = [placeholders[name].meta["val"] for name in names if isinstance(name, str)]
    return tuple(bool(value.dim()) and not is_concrete_int(value.shape[0]) for value in values)


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
