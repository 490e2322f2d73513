"""Classes that are exchanged keep their names, and new objects of such a class are float ones."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.nn.class_exchange import (
    AttachedModule,
    check_restorable,
    exchange_class,
    float_class,
    mixins_of,
    restore_class,
)
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


class Doubling(AttachedModule):
    """Multiplies what the float class computes."""

    factor: float

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * super().forward(x)

    def release(self) -> None:
        del self.factor


class Shifting(AttachedModule):
    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        return {"forward": lambda self, x: original.forward(self, x) + 1.0}


def test_mixins_lie_over_each_other_and_are_copied_pickled_and_released():
    module, x = nn.Linear(2, 2), torch.randn(3, 2)
    expected = 2.0 * module(x) + 1.0
    module.factor = 2.0
    exchange_class(module, Doubling)
    exchange_class(module, Shifting)
    assert isinstance(module, nn.Linear)
    assert mixins_of(type(module)) == (Shifting, Doubling)
    assert float_class(type(module)) is nn.Linear
    other = nn.Linear(2, 2)
    exchange_class(other, Doubling)
    exchange_class(other, Shifting)
    made = type(module)
    assert type(other) is made  # once for both
    for copied in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(copied) is made
        torch.testing.assert_close(copied(x), expected)
        restore_class(copied)
        assert type(copied) is nn.Linear
        assert not hasattr(copied, "factor")
        torch.testing.assert_close(copied(x), (expected - 1.0) / 2.0)
        check_restorable(copied)


def test_a_class_that_was_made_later_is_not_restored():
    module = nn.Linear(2, 2)
    exchange_class(module, Shifting)
    check_restorable(module)
    module.__class__ = type("Later", (type(module),), {})
    with pytest.raises(ValueError, match="the class Later of a module was made after attaching"):
        check_restorable(module)
