"""Packages that an extra of bayesbits installs: the error that names the missing ones, and how to install them.

A function that needs such a package calls `require_packages` or `require_extras` first, and imports the package after
that, inside the function: importing bayesbits itself works without any extra.
"""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "onnx": {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"},
    "openvino": {"openvino": "openvino"},
    "data": {"sklearn": "scikit-learn", "PIL": "pillow"},
    "solver": {"scipy": "scipy"},
    "ray": {"ray": "ray"},
    "figures": {"resvg_py": "resvg-py"},
    "tensorboard": {"tensorboard": "tensorboard"},
}
"""By extra, as in pyproject.toml: the modules that its packages install, and the name of each package."""


def has_extras(*extras: str) -> bool:
    """Whether every package of these extras is installed."""
    return all(_is_installed(module) for extra in extras for module in EXTRAS[extra])


def require_extras(purpose: str, *extras: str) -> None:
    """Raise an ImportError unless every package of these extras is installed."""
    require_packages(purpose, *(module for extra in extras for module in EXTRAS[extra]))


def require_packages(purpose: str, *modules: str) -> None:
    """Raise an ImportError unless these modules are installed; it names `purpose`, the packages and their extras."""
    missing = {module for module in modules if not _is_installed(module)}
    names = [name for packages in EXTRAS.values() for module, name in packages.items() if module in missing]
    if names:
        extras = ",".join(extra for extra, packages in EXTRAS.items() if not missing.isdisjoint(packages))
        raise ImportError(f'{purpose} needs {", ".join(names)}; install with: pip install "bayesbits[{extras}]"')


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # sys.modules maps the module to None: it is blocked from being imported
        return False
