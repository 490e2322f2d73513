"""The deployed network takes and returns what the network itself does."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bayesbits as bb
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.utils.pytree import Tree
from tests.deploy.exported import Exported, Several, exported


@pytest.fixture(scope="module")
def several() -> Exported:
    return exported(Several(), (torch.zeros(1, 6), torch.zeros(1, 6)), bits=(4,), drop=0.0, count=8)


def exchanged(tree: Tree) -> Tree:
    """A dict whose two items are the other way around."""
    return replace(tree, items=tree.items[::-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: {"inputs": it.inputs[::-1]}, "inputs: the record has y, x, and the network x, y"),
        (lambda it: {"outputs": it.outputs[::-1]}, "outputs: the record has two, one, and the network one, two"),
        (
            lambda it: {
                "takes": tuple(replace(one, name=name) for one, name in zip(it.takes, "yx", strict=True)),
                "inputs": it.inputs[::-1],
            },
            "arguments: the record has y, x, and the network x, y",
        ),
        (lambda it: {"returns": exchanged(it.returns)}, "one: the deployed network returns another of its outputs"),
        (
            lambda it: {"returns": replace(it.returns, keys=it.returns.keys[::-1]), "outputs": it.outputs[::-1]},
            "outputs: the record has two, one, and the network one, two",
        ),
        (
            lambda it: {"returns": replace(it.returns, kind="tuple", keys=())},
            "outputs: the deployed network returns a tuple of 0, 1, and the simulation a dict of one, two",
        ),
    ],
)
def test_the_deployed_network_takes_and_returns_what_the_network_does(change, message, several, tmp_path):
    small = copy.deepcopy(several.small)
    structure = small.integer.structure
    small.integer = IntegerNetwork(replace(structure, **change(structure)), small.integer.tensors)
    with pytest.raises(bb.VerificationError, match=f"^{message}"):
        bb.verify(several.compressor, small, export(small, several, tmp_path), several.inputs)


def export(small: bb.DeployedNetwork, case: Exported, folder: Path) -> Path:
    bb.export_onnx(small, case.example, folder / "same.onnx")
    return folder / "same.onnx"
