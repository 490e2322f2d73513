"""A network as a function of tensors alone: what torch.export is given, whatever the network itself takes and returns.

torch.export marks the tensors that it is given, takes one tensor given twice for one input, and knows few containers.
So it gets copies, one for each place, and a module that puts them where the network takes them. Everything else that
the network is called with (flags, numbers, None) is a constant of that module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils._pytree import tree_flatten, tree_unflatten

from bayesbits.tree import Tree, describe, tensors_in

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
        return tuple(tensors_in(self.call(tensors)))

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


def inner_path(path: str) -> str:
    """The path of a module or parameter of a `FlatNetwork` in the network itself."""
    return "" if path == NETWORK else path.removeprefix(f"{NETWORK}.")


def several(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Inputs with a batch of at least two, where they have one: torch.export takes a size of 1 for a constant."""
    batch = batch_size(tensors)
    return tuple(torch.cat([x, x]) if x.dim() and x.shape[0] == batch == 1 else x for x in tensors)


def batch_size(tensors: tuple[Tensor, ...]) -> int | None:
    """The first size of the first input that has any: the batch, if there is one."""
    return next((int(x.shape[0]) for x in tensors if x.dim()), None)


def batch_marks(tensors: tuple[Tensor, ...]) -> tuple[dict[int, Any] | None, ...]:
    """What torch.export is told of inputs that seem to have the batch in front: that its size may be any."""
    batch = batch_size(tensors)
    return tuple({0: Dim.AUTO} if x.dim() and x.shape[0] == batch else None for x in tensors)


def takes_any_batch(exported: ExportedProgram) -> tuple[bool, ...]:
    """For each tensor that the user hands in, whether the exported graph takes it with any first size.

    The network's code may have fixed the size of the batch, and torch.export then has a number there, perhaps in the
    guise of a symbol.
    """
    names = exported.graph_signature.user_inputs
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    values = [placeholders[name].meta["val"] for name in names if isinstance(name, str)]
    return tuple(bool(value.dim()) and not is_concrete_int(value.shape[0]) for value in values)
