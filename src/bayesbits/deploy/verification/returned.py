"""What the deployed network takes and returns, under which names: as the network itself does."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.signature import name_tensors
from bayesbits.deploy.verification.deployed import run_deployed
from bayesbits.deploy.verification.inputs import Batch
from bayesbits.deploy.verification.record import VerificationError
from bayesbits.deploy.verification.rounding import largest_difference
from bayesbits.utils.pytree import Tree, describe


def check_taken(small: DeployedNetwork, model: nn.Module) -> None:
    """Arguments are in the order of the network's forward, and tensors have the names of theirs."""
    structure = small.integer.structure
    parameters = list(inspect.signature(model.forward).parameters)
    taken = [argument.name for argument in structure.takes if argument.name in parameters]
    same_names("arguments", taken, [name for name in parameters if name in taken], "the record has")
    same_names("inputs", structure.inputs, name_tensors(structure.takes, structure.returns)[0], "the record has")


def check_returned(small: DeployedNetwork, batch: Batch, form: Tree) -> None:
    """A call returns the outputs of the program, in the form in which the simulation returns its own."""
    structure = small.integer.structure
    same_names("outputs", structure.outputs, name_tensors(structure.takes, form)[1], "the record has")
    _, outputs = run_deployed(small, small.bind(batch.args, batch.kwargs), ())
    found, expected = list[Tensor](), list[Tensor]()
    with torch.no_grad():
        theirs = describe(small(*batch.args, **batch.kwargs), found)
    mine = describe(form.build(outputs), expected)
    if theirs != mine:
        raise VerificationError(
            f"outputs: the deployed network returns {_words(theirs)}, and the simulation {_words(mine)}"
        )
    for name, one, other in zip(structure.outputs, found, expected, strict=True):
        if one.shape != other.shape or largest_difference(one, other):
            raise VerificationError(f"{name}: the deployed network returns another of its outputs in this place")


def same_names(what: str, found: Sequence[str], expected: Sequence[str], where: str) -> None:
    """Raise where names, or their order, are others than the network's."""
    if list(found) != list(expected):
        raise VerificationError(f"{what}: {where} {', '.join(found) or 'none'}, and the network {', '.join(expected)}")


def _words(form: Tree) -> str:
    """The way to each tensor and the content of each constant."""
    leaves = [(".".join(path), leaf.content) for path, leaf in form.leaves()]
    return f"a {form.kind} of " + ", ".join(f"{path} = {content}" if content else path for path, content in leaves)
