"""The arguments of a phase are checked, its position is counted, and its ranges are calibrated at its start."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesbits as bb
from bayesbits.training.phase import Position
from tests.training.problems import compressor, data, searched


def test_known_ranges_are_kept():
    handle = compressor()
    handle.calibrate([data().images * 50])
    known = handle.attachment.quantizers["head.input"].beta.clone()
    searched(handle, epochs=1, ranges={"lr": 0.0})
    assert torch.equal(handle.attachment.quantizers["head.input"].beta, known)


def test_no_epochs_and_wrong_configurations():
    handle = compressor()
    _, plan = searched(handle, epochs=0)
    assert plan == handle.plan()
    with pytest.raises(TypeError, match="search takes a SearchConfig"):
        bb.search(handle, [], F.cross_entropy, bb.FinetuneConfig())
    with pytest.raises(TypeError, match="finetune takes a FinetuneConfig"):
        bb.finetune(handle, [], F.cross_entropy, bb.SearchConfig())
    with pytest.raises(TypeError, match=r"what bayesbits\.attach returns"):
        bb.search(nn.Linear(1, 1), [], F.cross_entropy)


@pytest.mark.parametrize("bits", [2, 8])
def test_ranges_are_calibrated_at_the_width_that_the_configuration_names(bits):
    loader = [(data().images, data().labels)]
    frozen = {"lr": 0.0}
    handle, _ = searched(
        None, loader, epochs=1, calibration="mse", calibration_bits=bits, ranges=frozen, weights=frozen
    )
    expected = compressor()
    expected.calibrate([data().images], "mse", reference_bits=bits)
    for name, quantizer in expected.attachment.quantizers.items():
        assert torch.equal(handle.attachment.quantizers[name].beta, quantizer.beta), name
    other = compressor()
    other.calibrate([data().images], "mse", reference_bits=10 - bits)
    betas = [[q.beta.item() for q in one.attachment.quantizers.values()] for one in (expected, other)]
    assert betas[0] != betas[1]


def test_the_default_ranges_start_for_few_bits_and_follow_a_network_that_is_not_trained():
    """The network starts with small weights, and its inputs have long tails.

    With ranges by min/max few bits look bad, and gates stay open: 1.8% of the bit operations. With ranges that learn at
    1e-3 what grows is clipped: 59% accuracy.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 8, generator=generator)
    labels = (x[:, :4] - x[:, 4:]).argmax(1)
    x = x * torch.randn(2048, 2, generator=generator).square().mean(1, keepdim=True).rsqrt().clamp(max=100)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    for parameter in model.parameters():
        parameter.data.mul_(0.3)
    handle = bb.attach(model, x[:1], bb.Spec(prune=False))
    loader = DataLoader(TensorDataset(x[:1024], labels[:1024]), 64, shuffle=True)
    bb.search(handle, loader, F.cross_entropy, bb.SearchConfig(epochs=10, mu=0.01, weights={"lr": 5e-3}))
    handle.fix()
    with torch.no_grad():
        accuracy = (model.eval()(x[1024:]).argmax(1) == labels[1024:]).double().mean()
    assert accuracy > 0.8
    assert handle.cost().relative_bops < 1.4


def test_positions_in_epochs_by_hand():
    assert Position(epoch=2, batch=1, length=4).epochs_done() == 2.25
    assert Position(epoch=2, batch=1, length=4).epochs_done(2) == 2.75
    assert Position(epoch=2, batch=4, length=4).epochs_done(3) == 3
    assert Position(epoch=0, batch=7).epochs_done() == 0
    assert str(Position(epoch=1, batch=2, step=6)) == "6 steps (epoch 1, batch 2)"
