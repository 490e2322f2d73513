"""Every call of every layer in the simulation is compared with the deployed network."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.utils.naming import key_of
from tests.deploy.exported import exported

FEATURES = torch.zeros(1, 6)


class Twice(nn.Module):
    """One layer that is called with two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.b((self.a(x.tanh()) - self.a(y.tanh())).relu())


def test_every_call_of_a_layer_reads_what_it_should(tmp_path: Path) -> None:
    case = exported(Twice(), (FEATURES, FEATURES.clone()), bits=(4,), drop=0.0)
    assert case.verify(case.write(tmp_path / "right.onnx")).failure is None
    first, second = (node for node in case.small.program.graph.nodes if node.target == f"layers.{key_of('a')}")
    second.args = first.args
    case.small.program.recompile()
    with pytest.raises(bb.VerificationError, match=r"^a\.input: .* codes are not those of the simulation") as raised:
        case.verify(case.write(tmp_path / "wrong.onnx"))
    assert raised.value.found is not None
    assert raised.value.found.wrong
