"""A network as a function of tensors alone: what torch.export is given, whatever the network itself takes and returns.

torch.export marks the tensors that it is given, takes one tensor given twice for one input, and knows few containers.
So it gets copies, one for each place, and a module that puts them where the network takes them. Everything else that
the network is called with (flags, numbers, None) is a constant of that module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from bayesbits.utils.pytree import Tree, describe, tensors_in
from bayesbits.utils.torch_private import tree_flatten, tree_unflatten

NETWORK = "network"


class FlatNetwork(nn.Module):
    """Calls a network, its child, with tensors where its example had some; returns every tensor that it returns."""

    def __init__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.network = network
        self._leaves, self._form = tree_flatten((args, kwargs))
        self._places = [place for place, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        for leaf in self._leaves:
            if not isinstance(leaf, Tensor) and tensors_in(leaf):
                raise TypeError(
                    f"the network takes tensors inside of a {type(leaf).__name__}, which torch cannot take apart: "
                    "give tuples, lists and dicts, or register the class with torch.export.register_dataclass"
                )
        self.training = network.training

    def examples(self) -> tuple[Tensor, ...]:
        """Copies of the tensors that the network was called with, in the order of `forward`."""
        return tuple(self._leaves[place].detach().clone() for place in self._places)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(returned_tensors(self.call(tensors)))

    def call(self, tensors: tuple[Tensor, ...]) -> Any:
        """What the network itself returns for these tensors."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._form)
        return self.network(*args, **kwargs)

    def returns(self) -> Tree:
        """The form of what the network returns for its examples; its tensors are those of `forward`, in order."""
        return describe(self.call(self.examples()), [])


def returned_tensors(output: Any) -> list[Tensor]:
    """Every tensor that a network returns; raises where there is none."""
    tensors = tensors_in(output)
    if not tensors:
        raise TypeError(
            f"the network returns no tensors, but a {type(output).__name__} without any: return a tensor, or tensors "
            "in a tuple, list, dict or dataclass"
        )
    return tensors


def inner_path(path: str) -> str:
    """The path of a module or parameter of a `FlatNetwork` in the network itself."""
    return "" if path == NETWORK else path.removeprefix(f"{NETWORK}.")


def export_any_batch(
    flat: FlatNetwork, export: Callable[[tuple[Tensor, ...], Any], ExportedProgram]
) -> ExportedProgram:
    """The exported network, for any size of the batch where its code lets it be any.

    `export` takes examples, and for each of them which sizes may be any. Which inputs have the batch in front is not
    known: every first size is tried, in the order of the inputs, until one stays free.
    """
    examples = flat.examples()
    for size in dict.fromkeys(len(x) for x in examples if x.dim()):
        try:
            exported = export(*mark_batch(examples, size))
            if any(takes_any_batch(exported)):
                return exported
        except Exception:  # torch.export raises many kinds of errors; with fixed sizes it was read when attaching
            continue
    return export(examples, None)


def mark_batch(examples: tuple[Tensor, ...], size: int) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any] | None, ...]]:
    """Examples, and what torch.export is told of those with this first size: that it may be any.

    They become two at least: torch.export takes a size of 1 for a constant.
    """
    marked = [bool(x.dim()) and len(x) == size for x in examples]
    several = tuple(torch.cat([x, x]) if own and size == 1 else x for x, own in zip(examples, marked, strict=True))
    return several, tuple({0: Dim.AUTO} if own else None for own in marked)


def takes_any_batch(exported: ExportedProgram) -> tuple[bool, ...]:
    """For each tensor that the user hands in, whether the exported graph takes it with any first size.

    The network's code may have fixed the size of the batch, and torch.export then has a number there, perhaps in the
    guise of a symbol.
    """
    names = exported.graph_signature.user_inputs
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    values = [placeholders[name].meta["val"] for name in names if isinstance(name, str)]
    return tuple(bool(value.dim()) and not is_concrete_int(value.shape[0]) for value in values)
