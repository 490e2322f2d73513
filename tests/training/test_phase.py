"""The arguments of a phase are checked, its position is counted, and its ranges are calibrated at its start."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

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


def test_positions_in_epochs_by_hand():
    assert Position(epoch=2, batch=1, length=4).epochs_done() == 2.25
    assert Position(epoch=2, batch=1, length=4).epochs_done(2) == 2.75
    assert Position(epoch=2, batch=4, length=4).epochs_done(3) == 3
    assert Position(epoch=0, batch=7).epochs_done() == 0
    assert str(Position(epoch=1, batch=2, step=6)) == "6 steps (epoch 1, batch 2)"
