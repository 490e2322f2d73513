"""The package itself: importing it imports nothing else, and every public name is there when it is used."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bayesbits


def in_a_fresh_process(code: str) -> str:
    """What a fresh Python process prints that runs this code."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_does_not_import_torch():
    code = "import sys, bayesbits; print(bayesbits.__version__, 'torch' in sys.modules, 'numpy' in sys.modules)"
    assert in_a_fresh_process(code) == f"{bayesbits.__version__} False False"


def test_a_star_imports_every_public_name_and_no_package_that_few_programs_need():
    code = (
        "from bayesbits import *; import bayesbits, sys; print(set(bayesbits.__all__) <= set(globals()), "
        "[name for name in ('torch', 'sympy', 'triton', 'torch._dynamo', 'onnx', 'rich') if name in sys.modules], "
        "[name for name in sys.modules if name.startswith('bayesbits.baselines.')])"
    )
    assert in_a_fresh_process(code) == "True ['torch'] []"


def test_every_public_name_resolves():
    for name in bayesbits.__all__:
        assert getattr(bayesbits, name) is not None
    assert isinstance(bayesbits.baselines, ModuleType)
    assert bayesbits.Topology.__name__ == "Topology"
    assert bayesbits.search.__name__ == "search"
    assert set(bayesbits.__all__) <= set(dir(bayesbits))
    assert bayesbits.__all__ == sorted(bayesbits.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize("order", ["bayesbits.deploy.storage, bayesbits", "bayesbits, bayesbits.deploy.storage"])
def test_functions_keep_their_names_beside_subpackages(order):
    code = f"import {order}; print([type(getattr(bayesbits, name)).__name__ for name in ('deploy', 'search', 'trace')])"
    assert in_a_fresh_process(code) == str(["function"] * 3)


def test_a_module_cannot_take_the_place_of_a_function():
    assert inspect.isfunction(bayesbits.search)
    bayesbits.search = ModuleType("bayesbits.search")  # as Python does when it imports a submodule of this name
    assert inspect.isfunction(bayesbits.search)


def test_other_attributes_can_be_set_and_unknown_ones_are_named(monkeypatch):
    monkeypatch.setattr(bayesbits, "search", print)
    assert bayesbits.search is print
    with pytest.raises(AttributeError, match="module 'bayesbits' has no attribute 'serach'"):
        _ = bayesbits.serach


@pytest.mark.parametrize("package", [bayesbits, bayesbits.baselines], ids=lambda package: package.__name__)
def test_type_checkers_see_what_is_imported(package):
    tree = ast.parse(Path(package.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {}
    for node in guarded.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            path = f"{node.module}.{alias.name}" if node.module == "bayesbits" else f"{node.module}:{alias.name}"
            seen[alias.asname or alias.name] = path
    assert seen == package._SOURCES
    assert set(seen) == set(package.__all__)
