"""Containers that are built again: which classes, by which names, and what a name cannot do."""

import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bayesbits.utils.container_classes import build_container, field_names, find_class, name_class
from bayesbits.utils.pytree import describe

Pair = namedtuple("Pair", ("left", "right"))


@dataclass
class Result:
    logits: Tensor
    scale: float = 1.0


@dataclass
class Entries(OrderedDict):
    """As the outputs of transformers are: a dict whose keys are fields."""

    logits: Tensor | None = None
    hidden: Tensor | None = None

    def __post_init__(self) -> None:
        self.update({name: value for name, value in vars(self).items() if value is not None})


VALUES = [
    Pair(torch.ones(2), [torch.zeros(1)]),
    Result(torch.ones(2), 3.0),
    Entries(hidden=torch.ones(1)),
    OrderedDict(a=torch.ones(1)),
    {"inner": Result(torch.ones(1))},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_container_is_built_again(value):
    tensors: list[Tensor] = []
    form = describe(value, tensors)
    again = form.build(tensors)
    assert type(again) is type(value)
    assert describe(again, []) == form
    assert repr(again) == repr(value)


def test_plain_containers_and_other_classes_have_no_names():
    assert [name_class(cls) for cls in (dict, tuple, list, torch.Size, Exception)] == [""] * 5
    assert name_class(Pair) == f"{__name__}:Pair"
    assert field_names(Result) == ["logits", "scale"]
    assert build_container(Pair, (), (1, 2)) == (1, 2)


def test_an_object_without_its_class_comes_as_a_plain_container():
    tensors: list[Tensor] = []
    form = describe(Result(torch.ones(2)), tensors)
    unknown = type(form)(form.kind, keys=form.keys, items=form.items, type="no.such.module:Result")
    assert unknown.build(tensors) == {"logits": tensors[0], "scale": 1.0}


@pytest.mark.parametrize("name", ["os:system", "builtins:eval", "no_such_package:A", "os:", "torch.nn:Linear"])
def test_a_name_leads_to_containers_alone(name):
    assert find_class(name) is None


def test_modules_of_the_working_directory_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise SystemExit('this was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_class("planted:Result") is None
    assert "planted" not in sys.modules


def test_a_class_of_an_installed_package_is_imported():
    sys.modules.pop("torch.utils.data.datapipes.utils.decoder", None)
    found = find_class("onnx.helper:OpSetIdVersionMap") or find_class("numpy.linalg._linalg:EigResult")
    assert found is not None
