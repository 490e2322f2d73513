"""Every call of every layer in the simulation is compared with the deployed network."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.verification.compare_simulation import SimulationComparison
from bayesbits.deploy.verification.derived_constants import derive_grids, derive_layers
from bayesbits.deploy.verification.simulation import fixed_copy
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


def test_the_network_whose_constants_were_checked_is_the_one_that_is_simulated(tmp_path: Path) -> None:
    case = exported(Twice(), (FEATURES, FEATURES.clone()), bits=(4,), drop=0.0)
    plan = case.compressor.plan()
    fixed = fixed_copy(case.compressor, plan)
    weight = fixed.model.a.weight
    assert isinstance(weight, nn.Parameter)
    before = weight.detach().clone()
    grids = derive_grids(fixed, plan)
    comparison = SimulationComparison(fixed, case.small, derive_layers(fixed, plan, grids), grids, {})
    assert comparison.simulation.fixed.model is fixed.model
    assert torch.equal(fixed.model.a.weight, before)
    exact = comparison.exact.fixed
    assert fixed.model.a.weight.dtype == torch.float32
    assert exact.model.a.weight.dtype == torch.float64
    assert exact.model.a.parts.input is not fixed.model.a.parts.input
    # Calls of quantizers go to the simulation that they belong to, and not to both.
    assert len(exact.model.a._forward_pre_hooks) == len(fixed.model.a._forward_pre_hooks) == 1
    for simulation in (comparison.simulation, comparison.exact):
        assert simulation.fixed.attachment.quantizers["a.input"].forward.args[0] == "a.input"
        assert simulation.fixed.attachment.quantizers["a.input"].forward.func.__self__ is simulation
