"""Adaptive rounding on a GPU: the same promises, and a replayed step learns what a launched one does."""

import copy
import logging

import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import (
    AdaRoundConfig,
    ReconstructionConfig,
    adaround,
    correct_biases,
    correct_biases_without_data,
    equalize,
    reconstruct,
)
from bayesbits.utils.cuda_graph import Recorder


def fixed_network() -> tuple[bb.Compressor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 16, 4),
    ).cuda().eval()  # fmt: skip
    x = torch.randn(64, 3, 6, 6, device="cuda")
    before = model(x)
    equalize(model, x[:1])
    torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-3)
    compressor = bb.attach(model, x, bb.Spec(prune=False))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 3, 8))
    model.eval()
    return compressor, x


def test_steps_are_recorded_and_learn_what_launched_ones_do(monkeypatch, caplog):
    compressor, x = fixed_network()
    launched = copy.deepcopy(compressor)
    recorders = []
    start = Recorder.__init__

    def starting(self, *given, **options):
        recorders.append(self)
        start(self, *given, **options)

    monkeypatch.setattr(Recorder, "__init__", starting)
    with caplog.at_level(logging.WARNING, "bayesbits"):
        report = adaround(compressor, [x[:40], x[40:]], AdaRoundConfig(steps=200))
    assert not [record for record in caplog.records if record.name == "bayesbits"]  # others log their compiling
    assert recorders
    assert all(recorder.has_recorded for recorder in recorders)
    assert sum(unit.moved for unit in report.units) > 0
    assert all(unit.error <= unit.nearest_error for unit in report.units)
    monkeypatch.setattr(Recorder, "run", Recorder.launch)
    adaround(launched, [x[:40], x[40:]], AdaRoundConfig(steps=200))
    ours, theirs = (
        [layer.folded_codes() for layer in handle.model.modules() if hasattr(layer, "folded_codes")]
        for handle in (compressor, launched)
    )
    differing = sum(int((one != other).sum()) for one, other in zip(ours, theirs, strict=True))
    assert differing <= 0.01 * sum(map(torch.numel, ours))  # sums on a GPU are not always added in the same order


def test_biases_are_corrected():
    compressor, x = fixed_network()
    reference = bb.Compressor(copy.deepcopy(compressor.model)).detach()
    correct_biases_without_data(compressor, x[:1])
    correct_biases(compressor, [x], reference=reference)


def test_blocks_are_recorded_and_come_closer_to_float(caplog):
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(self.b(torch.relu(self.a(x)))) + x)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Block(), Block(), nn.Flatten(), nn.Linear(288, 4))
    model, x = model.cuda(), torch.randn(128, 3, 6, 6, device="cuda")
    model(x)  # batch norms that have never run would take their statistics in calibration, after the copy
    reference = copy.deepcopy(model.eval())
    compressor = bb.attach(model, x, bb.Spec(prune=False))
    compressor.fix(bb.baselines.uniform(compressor, [x], 3, 4, method="mse"))
    with torch.no_grad():
        nearest = (model(x) - reference(x)).square().mean().item()
        with caplog.at_level(logging.WARNING, "bayesbits"):
            report = reconstruct(compressor, [x[:64], x[64:]], ReconstructionConfig(steps=200))
        assert not [record for record in caplog.records if record.name == "bayesbits"]  # others log their compiling
        assert [unit.name for unit in report.units] == ["0", "1", "2", "4"]
        assert (model(x) - reference(x)).square().mean().item() < 0.8 * nearest
