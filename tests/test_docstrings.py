"""Docstrings of the public names: each says what it is, names its arguments, and has an example that runs."""

import dataclasses
import doctest
import inspect
import re
import types
from typing import Any

import pytest
import torch

import bayesbits
from bayesbits import baselines, functional

MODULES = {"bb": bayesbits, "bb.baselines": baselines, "bb.functional": functional}


def public() -> dict[str, Any]:
    """Every public function and class, by its name."""
    entries = {
        f"{prefix}.{name}": getattr(module, name) for prefix, module in MODULES.items() for name in module.__all__
    }
    return {name: entry for name, entry in entries.items() if inspect.isclass(entry) or inspect.isfunction(entry)}


def methods(cls: type) -> dict[str, Any]:
    """The public methods and properties that a class of ours defines, or inherits from one of ours."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("bayesbits"):
            found |= {name: entry for name, entry in vars(base).items() if not name.startswith("_")}
    found = {name: getattr(entry, "__func__", entry) for name, entry in found.items()}
    return {name: entry for name, entry in found.items() if isinstance(entry, types.FunctionType | property)}


def arguments(entry: Any) -> list[str]:
    """The names of what a function or a class is called with, but for the version of a record's form."""
    if inspect.isclass(entry) and not dataclasses.is_dataclass(entry) and "__init__" not in vars(entry):
        return []
    return [name for name in inspect.signature(entry).parameters if name not in ("self", "version")]


def lacking(entry: Any) -> str:
    """What the docstring of a public name lacks."""
    text = inspect.getdoc(entry) if "__doc__" in vars(entry) or inspect.isfunction(entry) else None
    text = "" if text is None or text.startswith(f"{entry.__name__}(") else text  # dataclasses make one up
    summary = text.split("\n\n")[0].strip()
    lacks = [] if summary.endswith((".", ":", "::")) else ["summary"]
    named = text.partition("Args:")[2] or text.partition("Attributes:")[2]
    if not all(re.search(rf"^\s*(?:\w+, )*\**{name}\b[^:\n]*:", named, re.MULTILINE) for name in arguments(entry)):
        lacks.append("Args")
    if ">>>" not in text and not (inspect.isclass(entry) and issubclass(entry, BaseException)):
        lacks.append("Example")
    if inspect.isclass(entry) and not all(inspect.getdoc(method) for method in methods(entry).values()):
        lacks.append("methods")
    return " ".join(lacks)


def examples() -> list[doctest.DocTest]:
    """The examples in the docstrings of all public names, and of the methods of public classes."""
    finder, globs, found = doctest.DocTestFinder(recurse=False, exclude_empty=True), {}, []
    globs |= {"bb": bayesbits, "torch": torch, "nn": torch.nn}
    for name, entry in public().items():
        of_class = methods(entry) if inspect.isclass(entry) else {}
        for path, documented in {name: entry, **{f"{name}.{method}": of_class[method] for method in of_class}}.items():
            found += finder.find(documented, path, globs=globs)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", public())
def test_a_public_name_is_documented(name):
    assert not lacking(public()[name]), f"the docstring of {name} lacks {lacking(public()[name])}"


@pytest.mark.parametrize("example", examples(), ids=lambda test: test.name)
def test_an_example_prints_what_it_says(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(optionflags=flags).run(example, out=report.append)
    assert not report, "".join(report)
