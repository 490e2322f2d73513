"""A network as a function from tensors to tensors, which is the form that torch.export is given.

torch.export marks the tensors that it is given, treats one tensor given twice as one input, and knows few containers.
A `FlatNetwork` hides all of this: it takes one tensor for each tensor in the user's inputs, puts it where the network
expects it, and returns every tensor that the network returns. Everything else in the user's inputs (flags, numbers,
None) is a constant of the `FlatNetwork`.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from bayesbits.utils.pytree import Tree, describe, tensors_in
from bayesbits.utils.torch_private import tree_flatten, tree_unflatten

NETWORK = "network"


class ForwardError(Exception):
    """Carries an error of the network's forward through torch.export, which leaves unknown errors as they are.

    Of an error that it knows, torch.export prints the graph traced so far to the user's stderr. The error itself is the
    `__cause__`.
    """


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
                    f"the network takes tensors inside a {type(leaf).__name__}, which torch cannot take apart: "
                    "give tuples, lists and dicts, or register the class with torch.export.register_dataclass"
                )
        self.training = network.training

    def examples(self) -> tuple[Tensor, ...]:
        """Copies of the tensors that the network was called with, in the order of `forward`."""
        return tuple(self._leaves[place].detach().clone() for place in self._places)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors that the network returns; raises a `ForwardError` from what the network raises."""
        try:
            return tuple(returned_tensors(self.call(tensors)))
        except Exception as error:
            raise ForwardError(str(error)) from error

    def call(self, tensors: tuple[Tensor, ...]) -> Any:
        """The network's own output for these tensors."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._form)
        return self.network(*args, **kwargs)

    def with_copied_network(self) -> FlatNetwork:
        """The same with a copy of the network, so that calls do not change what the network keeps between them."""
        args, kwargs = tree_unflatten(self._leaves, self._form)
        return FlatNetwork(copy.deepcopy(self.network), args, kwargs)

    def returns(self) -> Tree:
        """The form of the network's output for its examples; its tensors are those of `forward`, in order."""
        return describe(self.call(self.examples()), [])


def returned_tensors(output: Any) -> list[Tensor]:
    """Every tensor in a network's output; raises a TypeError where there is none."""
    tensors = tensors_in(output)
    if not tensors:
        raise TypeError(
            f"the network returns no tensors, but a {type(output).__name__} without any: return a tensor, or tensors "
            "in a tuple, list, dict or dataclass"
        )
    return tensors


def inner_path(path: str) -> str:
    """The path that a module or parameter of a `FlatNetwork` has in the network itself."""
    return "" if path == NETWORK else path.removeprefix(f"{NETWORK}.")
