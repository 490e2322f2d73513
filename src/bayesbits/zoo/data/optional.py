"""Packages that only the data sets need, asked for when they are used."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def from_data_extra(package: str, purpose: str) -> Iterator[None]:
    """Around an import: when `package` is not installed, say what needs it and how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{purpose} needs {package}; install it with: pip install bayesbits[data]") from error
