"""Adaptive rounding on a GPU: the same promises, and nothing in its loop that waits for the device."""

import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig, adaround, correct_biases, correct_biases_without_data, equalise
from bayesbits.baselines.reconstruction import Reconstruction


def test_the_baselines_run_and_the_loop_does_not_wait(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 16, 4),
    ).cuda().eval()  # fmt: skip
    x = torch.randn(64, 3, 6, 6, device="cuda")
    before = model(x)
    equalise(model, x[:1])
    torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-3)
    compressor = bb.attach(model, x, bb.Spec(prune=False))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 3, 8))
    model.eval()
    loss = Reconstruction.loss
    learning: list[int] = []

    def watched(*arguments, **keywords):
        torch.cuda.set_sync_debug_mode("error")
        learning.append(1)
        return loss(*arguments, **keywords)

    learn = Reconstruction.learn

    def ended(*arguments, **keywords):
        try:
            return learn(*arguments, **keywords)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Reconstruction, "loss", watched)
    monkeypatch.setattr(Reconstruction, "learn", ended)
    report = adaround(compressor, [x], AdaRoundConfig(steps=50))
    assert len(learning) == 3 * 50
    assert all(layer.error <= layer.nearest_error for layer in report.layers)
    correct_biases(compressor, [x])
    correct_biases_without_data(compressor, x[:1])
