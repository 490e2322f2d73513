"""Lazy packages: names are imported when they are used, and keep their places beside modules of the same name."""

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

from bayesbits import baselines
from bayesbits.utils.lazy_package import LazyPackage


@pytest.fixture
def package():
    """A package with a function of `json.decoder`, a whole module, and nothing imported yet."""
    made = LazyPackage("made")
    vars(made)["_SOURCES"] = {"scan": "json.decoder:scanstring", "colors": "colorsys"}
    return made


def test_a_name_is_looked_up_once(package):
    from json.decoder import scanstring

    assert "scan" not in vars(package)
    assert package.scan is scanstring
    assert vars(package)["scan"] is scanstring


def test_a_name_without_an_attribute_is_the_module(package):
    assert package.colors is sys.modules["colorsys"]


def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="module 'made' has no attribute 'skan'"):
        _ = package.skan
    assert not hasattr(package, "__path__")


def test_dir_has_the_names_that_are_not_imported_yet(package):
    vars(package)["other"] = 1
    assert {"scan", "colors", "other"} <= set(dir(package))
    assert dir(package) == sorted(dir(package))


def test_a_module_takes_the_place_of_no_function(package):
    package.scan = ModuleType("made.scan")
    assert inspect.isbuiltin(package.scan)
    package.colors = package.other = ModuleType("made.other")  # where the table has a module, or nothing
    assert package.colors is package.other


def test_other_values_can_be_set(package, monkeypatch):
    monkeypatch.setattr(package, "scan", print)
    assert package.scan is print


def test_a_baseline_is_a_function_after_its_module_was_imported():
    code = "import bayesbits.baselines.uniform; print(type(bayesbits.baselines.uniform).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "function"


def test_help_shows_the_baselines(capsys):
    help(baselines)
    shown = capsys.readouterr().out
    assert all(f"    {name}(" in shown or f"class {name}(" in shown for name in baselines.__all__)
