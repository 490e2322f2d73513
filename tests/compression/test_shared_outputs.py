"""An output that is read under another name, too, gets no quantizer: only one of its readers would see that."""

import copy

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.compression.shared_outputs import WHY, without_shared_outputs

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Unit(nn.Module):
    """A residual unit that starts with an activation, and keeps its input, or what the activation made of it."""

    def __init__(self, inplace: bool, returned: bool) -> None:
        super().__init__()
        self.relu, self.conv, self.returned = nn.ReLU(inplace=inplace), nn.Conv2d(8, 8, 3, padding=1), returned

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        x = self.relu(x)
        return self.conv(x) + (x if self.returned else identity)


class Network(nn.Module):
    def __init__(self, inplace: bool = True, returned: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.units = nn.Sequential(*(Unit(inplace, returned) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.units(self.first(x)))


class Checked(Network):
    """A network whose code refuses NaN."""

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        if not torch.compiler.is_exporting() and bool(result.isnan().any()):
            raise RuntimeError("NaN")
        return result


def shared(model: nn.Module) -> list[str]:
    topology = without_shared_outputs(model, bb.trace(model, IMAGES[:1]), IMAGES[:1])
    return [entry.name for entry in topology.unsupported if entry.reason == WHY]


@pytest.mark.parametrize("make", [Network, Checked])
def test_an_activation_that_writes_into_what_the_code_kept_is_found(make):
    model = make().eval()
    before, state, x = copy.deepcopy(model.state_dict()), torch.get_rng_state(), IMAGES.clone()
    assert shared(model) == ["units.0.relu", "units.1.relu"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(IMAGES, x)
    assert not any(module._forward_hooks for module in model.modules())


class Viewed(nn.Module):
    """A module that returns a view of its input, which others read: nothing is written."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.flatten, self.last = nn.Conv2d(3, 8, 8), nn.Flatten(), nn.Linear(8, 8)
        self.other = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.flatten(x) + self.other(x))


def test_a_view_of_the_input_is_not_written():
    assert "flatten.output" in bb.trace(Viewed().eval(), IMAGES[:1]).operand_tensors
    assert shared(Viewed().eval()) == []


@pytest.mark.parametrize("options", [(False, False), (True, True), (False, True)])
def test_others_keep_their_quantizers(options):
    model = Network(*options).eval()
    assert shared(model) == []
    topology = bb.trace(model, IMAGES[:1])
    assert without_shared_outputs(model, topology, IMAGES[:1]) is topology


@torch.no_grad()
def test_such_a_network_is_deployed_as_it_was_simulated(tmp_path):
    model = Network().eval()
    compressor = bb.attach(model, IMAGES[:1], bb.Spec.for_backend("onnxruntime"))
    assert "units.0.relu.output" not in compressor.attachment.quantizers
    assert "units.0.relu (shared output)" in str(compressor)
    compressor.calibrate([IMAGES])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
    small = bb.deploy(compressor)
    bb.export_onnx(small, IMAGES[:1], tmp_path / "network.onnx")
    bb.verify(compressor, small, tmp_path / "network.onnx", IMAGES)
