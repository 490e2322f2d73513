"""What a verification cannot run on is refused before it starts."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import bayesbits as bb
from tests.deploy.exported import Exported, exported


@pytest.fixture(scope="module")
def case() -> Exported:
    return exported(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)), torch.zeros(1, 12), count=4)


@pytest.mark.parametrize("inputs", [torch.zeros(0, 12), torch.zeros(4, 0), ()])
def test_on_no_inputs_nothing_is_proven(inputs, case):
    with pytest.raises(ValueError, match="given no inputs, and on none nothing is proven: pass examples"):
        bb.verify(case.compressor, case.small, "not read", inputs)


@pytest.mark.parametrize("strange", [torch.nan, torch.inf])
def test_inputs_that_are_not_finite_are_named(strange, case):
    inputs = torch.zeros(4, 12)
    inputs[1, 2] = strange
    with pytest.raises(ValueError, match="the input 'input' has 1 values that are not finite"):
        bb.verify(case.compressor, case.small, "not read", inputs)


def test_inputs_in_any_precision_and_with_gradients(case, tmp_path):
    path = case.write(tmp_path / "network.onnx")
    for inputs in (case.inputs.double(), case.inputs.half(), case.inputs.clone().requires_grad_()):
        assert bb.verify(case.compressor, case.small, path, inputs).simulated.inputs == 4


class Shifted(torch.nn.Module):
    """Rows, and numbers that are no batch: a scalar before them, and a vector behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)

    def forward(self, time, x, shift):
        return self.head(torch.relu(self.layer(x + shift) * time))


@pytest.fixture(scope="module")
def shifted(tmp_path_factory) -> tuple[bb.Compressor, bb.DeployedNetwork, Path]:
    inputs = (torch.tensor(0.5), torch.randn(3, 6), torch.randn(6))
    compressor = bb.attach(Shifted().eval(), inputs)
    compressor.calibrate([inputs])
    compressor.fix()
    small = bb.deploy(compressor)
    path = tmp_path_factory.mktemp("shifted") / "network.onnx"
    bb.export_onnx(small, inputs, path)
    return compressor, small, path


@pytest.mark.parametrize("count", [1, 6, 100])
def test_what_is_no_batch_is_not_cut(count, shifted):
    compressor, small, path = shifted
    assert small.integer.structure.batched == (False, True, False)
    found = bb.verify(compressor, small, path, (torch.tensor(0.5), torch.randn(count, 6), torch.randn(6)))
    assert found.simulated.inputs == count


def test_inputs_of_another_shape_are_named(shifted):
    time, x, shift = torch.tensor(0.5), torch.randn(4, 6), torch.randn(6)
    for inputs, message in (
        ((time, torch.randn(4, 1), shift), "'x' has the shape 4 x 1, and the network takes any x 6"),
        ((time, x, torch.randn(1)), "'shift' has the shape 1, and the network takes 6"),
        ((torch.randn(1), x, shift), "'time' has the shape 1, and the network takes a single number"),
    ):
        with pytest.raises(ValueError, match=f"the input {message}, as it was attached: pass inputs of that shape"):
            bb.verify(*shifted, inputs)


class Fixed(torch.nn.Module):
    """Pairs of rows, and as many numbers as a row has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, shift, x):
        return self.layer(x.reshape(2, 4) + shift)


def test_a_network_of_one_size_is_called_with_that_size(tmp_path):
    inputs = (torch.randn(4), torch.randn(2, 4))
    compressor = bb.attach(Fixed().eval(), inputs)
    compressor.calibrate([inputs])
    compressor.fix()
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs, tmp_path / "network.onnx")
    for count in (2, 4, 6):
        found = bb.verify(compressor, small, tmp_path / "network.onnx", (inputs[0], torch.randn(count, 4)))
        assert found.simulated.inputs == count // 2
    with pytest.raises(ValueError, match=r"takes 'x' in batches of 2, .* 5 examples are not a whole number .*: pass 4"):
        bb.verify(compressor, small, tmp_path / "network.onnx", (inputs[0], torch.randn(5, 4)))


def test_the_progress_counts_the_batches(case, tmp_path, monkeypatch):
    path, seen = case.write(tmp_path / "network.onnx"), []

    @contextmanager
    def record(what, total):
        yield lambda: seen.append((what, total))

    module = sys.modules[bb.verify.__module__]
    monkeypatch.setattr(module, "progress_bar", record)
    monkeypatch.setattr(sys.modules[module.Inputs.__module__], "LARGEST_BATCH", 3)
    bb.verify(case.compressor, case.small, path, case.inputs)
    assert seen == [("verifying", 2)] * 2
