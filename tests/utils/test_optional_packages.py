"""A missing package is named with its purpose and the extra that installs it."""

import sys
import tomllib
from pathlib import Path

import pytest

from bayesbits.utils import optional_packages
from bayesbits.utils.optional_packages import EXTRAS, has_extras, require_extras, require_packages


@pytest.fixture
def _without_some(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("onnxscript", "onnxruntime", "sklearn")
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None if name in missing else name)


@pytest.mark.usefixtures("_without_some")
def test_all_missing_packages_of_several_extras_are_named() -> None:
    with pytest.raises(ImportError) as raised:
        require_extras("a demo", "onnx", "data")
    assert str(raised.value) == (
        'a demo needs onnxscript, onnxruntime, scikit-learn; install with: pip install "bayesbits[onnx,data]"'
    )


@pytest.mark.usefixtures("_without_some")
def test_only_what_is_asked_for_has_to_be_there() -> None:
    require_packages("pictures", "PIL")
    with pytest.raises(
        ImportError, match=r'^digits needs scikit-learn; install with: pip install "bayesbits\[data\]"$'
    ):
        require_packages("digits", "PIL", "sklearn")


def test_a_module_that_is_blocked_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pictures needs pillow"):
        require_packages("pictures", "PIL")


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra, packages in EXTRAS.items():
        declared = {requirement.split(">")[0] for requirement in project["optional-dependencies"][extra]}
        assert declared == set(packages.values())


def test_whether_an_extra_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None if name == "openvino" else name)
    assert has_extras("onnx", "data")
    assert not has_extras("onnx", "openvino")
