"""Networks and functions by name."""

import pytest
import torch
from torch import nn

from bayesbits.recipes.factories import build_model, call_factory, find_function

MODULE = """
from torch import nn, zeros

def network(width=4):
    return nn.Linear(6, width)

def with_example():
    return nn.Linear(6, 2), zeros(1, 6)

def nothing():
    return None

def raises():
    raise KeyError("no such thing")

number = 3
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    (tmp_path / "users_factories.py").write_text(MODULE)
    (tmp_path / "users_import.py").write_text("import no_such_package")
    (tmp_path / "users_error.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)


def test_a_network_of_the_zoo_gets_the_classes_of_the_data_unless_options_have_them():
    x = torch.zeros(1, 1, 28, 28)
    for options, classes in (({}, 7), ({"num_classes": 3}, 3)):
        model, example = build_model("lenet5", options, 7)
        assert model.eval()(x).shape == (1, classes)
        assert example is None
    with pytest.raises(ValueError, match=r"the network 'lenet5' does not take these options: .*depth"):
        build_model("lenet5", {"depth": 3})


def test_a_function_returns_a_network_or_a_pair_with_example_inputs():
    model, example = build_model("users_factories:network", {"width": 5}, 7)
    assert isinstance(model, nn.Linear)
    assert (model.out_features, example) == (5, None)
    model, example = build_model("users_factories:with_example", {})
    assert model(example).shape == (1, 2)
    with pytest.raises(ValueError, match=r"returned a NoneType; it returns a torch.nn.Module"):
        build_model("users_factories:nothing", {})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("users_factories:netwrk", "no function 'netwrk'; did you mean users_factories:network"),
        ("users_factories:number", "has no function 'number'"),
        ("users_factory:network", "the loss 'users_factory:network' cannot be imported: there is no module 'users_fa"),
        ("users_import:network", "there is no module 'no_such_package'"),
        ("users_error:network", "cannot be imported: ZeroDivisionError"),
        ("users_factories:", "the loss is 'users_factories:'; a function is named package.module:function"),
        (":network", "a function is named package.module:function"),
    ],
)
def test_a_function_that_cannot_be_found_is_named(name, said):
    with pytest.raises(ValueError, match=said):
        find_function(name, "loss")


def test_an_error_of_a_function_is_named_with_it():
    with pytest.raises(ValueError, match="the data 'users_factories:raises' raised KeyError: 'no such thing'"):
        call_factory("users_factories:raises", {}, "data")
    with pytest.raises(ValueError, match=r"the model 'users_factories:network' raised TypeError: .*depth"):
        build_model("users_factories:network", {"depth": 3})
