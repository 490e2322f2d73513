"""Exchanged classes: names stay, and new objects of such a class are float ones."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from tests.nn.networks import Stem, attached


def test_what_is_made_of_a_sequential_network_is_a_float_container():
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(5, 8)
    attached(model, x)
    model.eval()
    assert len(model) == len(list(model)) == 3
    assert isinstance(model[-1], nn.Linear)
    front, back = model[:2], model[2:]
    assert type(front) is type(back) is nn.Sequential
    assert torch.equal(back(front(x)), model(x))
    assert torch.equal(nn.Sequential(*list(model.children())[:-1])(x), front(x))
    assert torch.equal((front + back)(x), model(x))
    model.append(nn.Softmax(dim=1))
    assert [name for name, _ in model.named_children()][:4] == ["0", "1", "2", "3"]
    assert torch.equal(model(x), back(front(x)).softmax(dim=1))
    assert type(type(model[0])(3, 5)) is nn.Linear
    nn.utils.parametrizations.weight_norm(model[0])  # exchanges the class once more
    assert type(type(model[0])(3, 5)) is nn.Linear
    with pytest.raises(ValueError, match=r"made after attaching.*load the weights into a new float network"):
        bb.Compressor(model).detach()
    assert bb.Compressor(model).plan()


def test_classes_keep_their_names():
    """Libraries look classes up by them, as transformers does for the hidden states that it records."""
    model = Stem()
    before = [str(type(module)) for module in model.modules()]
    compressor = attached(model, torch.randn(5, 8))
    mine = set(compressor.attachment.modules())
    assert [str(type(module)) for module in model.modules() if module not in mine] == before
