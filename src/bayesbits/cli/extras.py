"""Packages that are not always installed, asked for before the work that would need them at its end."""

from importlib.util import find_spec

from bayesbits.deploy.onnx.packages import PACKAGES as ONNX

EXTRAS = {"onnx": {package: package for package in ONNX}, "data": {"sklearn": "scikit-learn", "PIL": "pillow"}}


def require_extras(purpose: str, *extras: str) -> None:
    """Raise, saying what is missing and how to get it, unless everything of these extras is installed."""
    missing = {extra: [name for module, name in EXTRAS[extra].items() if find_spec(module) is None] for extra in extras}
    lacking = [extra for extra in extras if missing[extra]]
    if lacking:
        names = ", ".join(name for extra in lacking for name in missing[extra])
        raise ImportError(f'{purpose} needs {names}; install with: pip install "bayesbits[{",".join(lacking)}]"')
