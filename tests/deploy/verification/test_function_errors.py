"""Functions that onnxruntime computes in another way than torch: allowed their roundings, and nothing else."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.verification.function_errors import EXPONENTIAL_UNITS
from tests.deploy.exported import Function, prove


class Gated(nn.Module):
    """Numbers times a sigmoid that is 1 to the last bit for some channels, and nearly 0 for the others."""

    def __init__(self, silu: bool) -> None:
        super().__init__()
        self.numbers, self.gates, self.head = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 1), nn.Conv2d(8, 2, 1)
        self.silu = silu
        nn.init.constant_(self.gates.weight, 1e-6)
        self.gates.bias.data = torch.tensor([-17.0, 20, 20, 20, -16, -15, 20, 20])

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gates(x)
        return self.head(nn.functional.silu(gates) if self.silu else self.numbers(x).relu() * gates.sigmoid())


@pytest.mark.parametrize("silu", [False, True])
def test_a_sigmoid_that_is_nearly_zero_may_be_off_by_roundings_of_one(tmp_path: Path, silu: bool) -> None:
    torch.manual_seed(1)
    network, x = Gated(silu).eval(), torch.randn(4, 4, 8, 8)
    prove(network, x, tmp_path / "small.onnx")


class Scores(nn.Module):
    """Scores that are all nearly 0, by a sigmoid or SiLU."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.first, self.scores, self.function = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), function
        nn.init.constant_(self.scores.bias, -10.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.scores(self.first(x).relu()))


@pytest.mark.parametrize("function", [nn.Sigmoid(), nn.SiLU()])
def test_sigmoids_that_are_all_nearly_zero_are_allowed_roundings_of_one(tmp_path: Path, function: nn.Module) -> None:
    torch.manual_seed(0)
    network, x = Scores(function).eval(), torch.randn(4, 3, 12, 12)
    prove(network, x, tmp_path / "small.onnx")


UNITS = {
    "ELU": (nn.ELU(), 0.7, "alpha", 1.0001),
    "CELU": (nn.CELU(), 0.7, "alpha", 1.0001),
    "SELU": (nn.SELU(), -0.01, "gamma", 1.0508),
    "ELU times a number": (lambda x: 64 * nn.functional.elu(x), 0.7, "alpha", 1.0001),
}
"""Activations, the mean of what they read, and an attribute with a wrong value."""


@pytest.mark.parametrize("name", UNITS)
def test_exponential_units_are_allowed_their_roundings_and_no_other_scale(tmp_path: Path, name: str) -> None:
    """All numbers that are rounded may be nearly 0: ELU leaves those above zero as they are, or all are that small."""
    unit, mean, attribute, wrong = UNITS[name]
    torch.manual_seed(0)
    layers = {"a": nn.Conv2d(1, 8, 3, stride=2), "b": nn.Conv2d(8, 4, 3)}
    nn.init.constant_(layers["a"].bias, mean)
    network = Function(lambda self, x: self.b(unit(self.a(x))), **layers).eval()
    x, file = torch.randn(16, 1, 16, 16), tmp_path / "right.onnx"
    case = prove(network, max(mean, 1e-4) * x, file, bb.Spec())
    model = onnx.load(str(file))
    node = next(node for node in model.graph.node if node.op_type in EXPONENTIAL_UNITS)
    kept = [one for one in node.attribute if one.name != attribute]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(attribute, wrong)])
    onnx.save(model, str(tmp_path / "wrong.onnx"))
    with pytest.raises(bb.VerificationError, match=r"^b.input: numbers of the quantizer are off by"):
        case.verify(tmp_path / "wrong.onnx")


def test_an_exponential_function_minus_one_is_allowed_its_roundings(tmp_path: Path) -> None:
    """A file has no operation for both at once; all numbers are nearly 0 here."""
    torch.manual_seed(0)
    layers = {"a": nn.Conv2d(1, 8, 3, bias=False), "b": nn.Conv2d(8, 4, 3)}
    network = Function(lambda self, x: self.b(torch.expm1(self.a(x))), **layers).eval()
    prove(network, 1e-3 * torch.randn(16, 1, 16, 16), tmp_path / "small.onnx", bb.Spec())
    assert "Exp" in {node.op_type for node in onnx.load(str(tmp_path / "small.onnx")).graph.node}
