"""Modes and gradient flags come back, also after an error."""

from contextlib import suppress

import pytest
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


def test_gradient_flags_come_back():
    model = mixed()
    with suppress(KeyError), gradient_flags_restored(model.parameters()):
        model.requires_grad_(True)
        raise KeyError
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True]
