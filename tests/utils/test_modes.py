"""Modes and gradient flags come back, also after an error."""

from contextlib import suppress

import pytest
import torch
from torch import nn

from bayesbits.utils.modes import evaluation_mode, gradient_flags_restored, modes_restored


def mixed() -> nn.Sequential:
    model = nn.Sequential(nn.Dropout(), nn.Linear(2, 2))
    model[0].eval()
    model[1].weight.requires_grad_(False)
    return model


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("context", [modes_restored, evaluation_mode])
def test_each_module_gets_its_own_mode_back(context):
    model = mixed()
    with suppress(KeyError), context(model):
        model.train()
        raise KeyError
    assert modes(model) == [True, False, True]


def test_inside_of_evaluation_mode_nothing_trains():
    model = mixed()
    with evaluation_mode(model):
        assert not any(modes(model))


@pytest.mark.parametrize("fused", [True, False])
def test_in_evaluation_mode_transformer_layers_call_their_modules(fused):
    """The fused layer does not, and the encoder would hand it nested tensors and set padded positions to zero."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).eval()
    x, padded, called = torch.randn(2, 3, 4), torch.tensor([[False] * 3, [False, True, True]]), []
    encoder.layers[0].linear1.register_forward_hook(lambda *_: called.append(True))
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fused)
    try:
        with suppress(KeyError), torch.no_grad(), evaluation_mode(encoder):
            assert encoder(x, src_key_padding_mask=padded)[1, 1:].abs().min() > 0
            raise KeyError
        assert torch.backends.mha.get_fastpath_enabled() == fused
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert called == [True]


def test_gradient_flags_come_back():
    model = mixed()
    with suppress(KeyError), gradient_flags_restored(model.parameters()):
        model.requires_grad_(True)
        raise KeyError
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True]
