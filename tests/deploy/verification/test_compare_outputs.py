"""The outputs are compared, and the deployed network takes and returns what the network itself does."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bayesbits as bb
from bayesbits.deploy.verification.compare_outputs import OutputComparison, class_axes, compare_predictions
from bayesbits.deploy.verification.result import Predictions
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.utils.pytree import Tree
from tests.deploy.exported import Exported, Function, Several, exported


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


def test_predictions_that_differ_are_counted_over_batches() -> None:
    one, other = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[2.0, 1.0], [3.0, 2.0]])
    found = compare_predictions(one, other, -1, Predictions())
    assert found == Predictions(classes=2, compared=2, flipped=1)
    assert compare_predictions(one, one, -1, found) == Predictions(2, 4, 1)
    for nothing in ((one, other, None), (one.long(), other.long(), -1), (one[:, :1], other[:, :1], -1)):
        assert compare_predictions(*nothing, found) == found


def test_classes_lie_along_the_channels_of_the_last_layer_unless_they_are_moved() -> None:
    def forward(self: Function, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        maps = self.c(x)
        return maps, maps.sigmoid() * 2, self.b(maps.mean((2, 3))), maps.mT, maps.flatten(1)

    network = Function(forward, c=torch.nn.Conv2d(3, 4, 3), b=torch.nn.Linear(4, 2))
    small = exported(network, torch.zeros(1, 3, 5, 5), bits=(8,), drop=0.0, count=2).small
    assert class_axes(small) == [-3, -3, -1, None, None]


def test_outputs_are_compared_with_their_tolerance(several: Exported) -> None:
    outputs = OutputComparison(several.small)
    exact = [torch.linspace(1, 2, 32).reshape(8, 4).double(), torch.ones(8, 4).double()]
    rounded = [x.float() for x in exact]
    rounded[0][0, 0] += 1e-3
    deployed = [rounded[0] + 3e-3, exact[1].float()]
    end_to_end = [rounded[0] + 0.5, exact[1].float()]
    outputs.compare(end_to_end, exact, rounded, deployed)
    one, two = outputs.result()
    assert (one.name, one.values, two.name) == ("one", 32, "two")
    assert one.relative_error == pytest.approx(4e-3 / 2, rel=1e-3)
    assert one.tolerance == pytest.approx(4e-3 / 2, rel=1e-3)
    assert one.relative_error_end_to_end == pytest.approx((0.5 - 3e-3) / 2, rel=1e-3)
    assert two.relative_error == two.relative_error_end_to_end == 0.0
    with pytest.raises(bb.VerificationError, match=r"^two: off by 1\.0e-04, where 1 is the largest .* own codes$"):
        outputs.compare(end_to_end, exact, rounded, [deployed[0], deployed[1] + 1e-4])
    with pytest.raises(bb.VerificationError, match=r"^two: shape \(8, 4\) when trained, \(8, 3\) deployed"):
        outputs.compare(end_to_end, exact, rounded, [deployed[0], deployed[1][:, :3]])
    with pytest.raises(bb.VerificationError, match="the simulation returns 2 tensors, and the deployed network 1"):
        outputs.compare(end_to_end, exact, rounded, deployed[:1])
