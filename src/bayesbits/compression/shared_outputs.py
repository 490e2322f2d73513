"""Outputs that are read under another name: a module writes into its input, and the network's code keeps that.

    identity = x
    x = self.relu(x)          # nn.ReLU(inplace=True): identity is the output of the ReLU, too
    return self.conv(x) + identity

A quantizer at the output of such a module changes what the module returns, and not what the code kept, while in the
graph, where nothing is written in place, all readers read one tensor. So the network runs once more on its example
inputs while such modules return copies and leave NaN behind: where that changes what the network returns, the output
gets no quantizer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.observers import network_restored
from bayesbits.records.topology import Topology, Unsupported
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.torch_private import tensor_version, tree_leaves, tree_map_only

WHY = (
    "its output stays in float: it writes into its input, which the network's code reads afterwards under another "
    "name. To fix this: read what the module returns, or inplace=False where the values from before are meant"
)


def without_shared_outputs(model: nn.Module, topology: Topology, example_inputs: Any) -> Topology:
    """The topology without quantizers at outputs that are read under another name; the network stays as it is."""
    modules = dict.fromkeys(topology.operand_tensors.values())
    if not modules:
        return topology
    written: dict[str, None] = {}
    expected = _run(model, example_inputs, modules, written)

    def is_read(names: Collection[str]) -> bool:
        try:
            found = _run(model, example_inputs, names, {}, poison=True)
        except Exception:  # the network's own code refuses NaN, which it has read
            return True
        return not _equal(found, expected)

    if not written or not is_read(written):
        return topology
    shared = [name for name in written if is_read([name])]
    return replace(
        topology,
        additions=tuple(
            replace(one, operands=tuple(None if name in shared else name for name in one.operands))
            for one in topology.additions
        ),
        emitted=tuple(name for name in topology.emitted if name not in shared),
        unsupported=(*topology.unsupported, *(Unsupported(name, "shared output", 0, WHY) for name in shared)),
    )


def _run(
    model: nn.Module,
    example_inputs: Any,
    names: Collection[str],
    written: dict[str, None],
    *,
    poison: bool = False,
) -> list[Tensor]:
    """What the network returns; those modules of `names` that write into their input are put into `written`."""

    versions: dict[int, int] = {}

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        versions.update((x.data_ptr(), tensor_version(x)) for x in inputs if isinstance(x, Tensor) and x.numel())

    def after(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        if versions.get(output.data_ptr(), tensor_version(output)) == tensor_version(output):
            return None  # a tensor of its own, or its input as it was
        written[name] = None
        if not poison:
            return None
        returned = output.clone()
        output.fill_(torch.nan)
        return returned

    modules = [(name, model.get_submodule(name)) for name in names]
    handles = [module.register_forward_pre_hook(before) for _, module in modules]
    handles += [module.register_forward_hook(partial(after, name)) for name, module in modules]
    args, kwargs = tree_map_only(Tensor, lambda x: x.detach().clone(), split_inputs(example_inputs))
    try:
        with network_restored(model), evaluation_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            result = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return [x.clone() for x in tree_leaves(result) if isinstance(x, Tensor)]


def _equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether two results are the same, NaN included."""
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(
        one.shape == other.shape and bool(torch.isclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True).all())
        for one, other in pairs
    )
