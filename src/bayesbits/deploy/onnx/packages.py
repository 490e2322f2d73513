"""Packages that only ONNX needs, asked for when they are used."""

from importlib.util import find_spec

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require(purpose: str) -> None:
    """Raise, saying what is missing and how to get it, unless everything that ONNX needs is installed."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise ImportError(f"{purpose} needs {', '.join(missing)}; install with: pip install bayesbits[onnx]")
