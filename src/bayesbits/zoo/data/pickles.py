"""Reads the pickled batches of CIFAR-10 without running anything that a pickle may name.

A pickle is a program: it names functions to be called. Here a name finds nothing but the stand-ins below, which take
note of what NumPy would have been told; the array is then made from the bytes. No function of NumPy or of any other
package is called on a file's behalf, and any other name is refused.
"""

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read_pickle(content: bytes, source: str) -> Any:
    """The object in a pickle of containers, numbers, strings and byte arrays; strings of Python 2 become bytes."""
    try:
        return _Restricted(io.BytesIO(content), encoding="bytes").load()
    except _RefusedError as error:
        raise ValueError(f"{source} was refused: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"{source} is truncated or damaged: {type(error).__name__}: {error}") from error


def as_array(value: Any) -> NDArray[np.uint8] | None:
    """The array that a pickle held, or None where `value` is something else."""
    return value.array if isinstance(value, _Array) else None


class _RefusedError(Exception):
    """A pickle asked for something that a batch of images does not need."""


class _StandIn:
    """What a name in a pickle finds; its own `__setstate__` keeps a pickle from changing attributes."""

    def __setstate__(self, state: Any) -> None:
        pass


class _ElementType(_StandIn):
    """In the place of numpy.dtype, for unsigned bytes only."""

    def __init__(self, code: Any, *_flags: Any) -> None:
        if code not in ("u1", b"u1"):
            raise _RefusedError(f"it holds an array of type {code!r}; only unsigned bytes, 'u1', are read")


class _Array(_StandIn):
    """In the place of an array that is made first and filled afterwards."""

    array: NDArray[np.uint8] | None = None

    def __init__(self, *_made_as: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _version, shape, element_type, fortran, content = state
        self.fill(content, element_type, shape, "F" if fortran else "C")

    def fill(self, content: Any, element_type: Any, shape: Any, order: Any) -> None:
        if not isinstance(element_type, _ElementType) or not isinstance(content, bytes | bytearray):
            raise _RefusedError("it holds an array that is not made of bytes")
        if len(content) != math.prod(shape):
            raise _RefusedError(f"it holds an array of shape {shape} with {len(content)} bytes")
        self.array = np.frombuffer(bytes(content), np.uint8).reshape(shape, order="F" if order == "F" else "C")


class _FilledArray(_Array):
    """In the place of an array that is made from its bytes at once, as newer pickles do."""

    def __init__(self, content: Any, element_type: Any, shape: Any, order: Any) -> None:
        self.fill(content, element_type, shape, order)


class _Bytes(_StandIn):
    """In the place of `_codecs.encode`, by which Python 3 writes bytes into pickles for Python 2."""

    def __new__(cls, text: Any, encoding: Any) -> Any:
        if not isinstance(text, str) or encoding != "latin1":
            raise _RefusedError(f"it encodes text as {encoding!r}; only bytes written as latin1 are read")
        return text.encode("latin1")


_KNOWN: dict[tuple[str, str], type[_StandIn]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _ElementType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _FilledArray,
    ("numpy._core.numeric", "_frombuffer"): _FilledArray,
    ("_codecs", "encode"): _Bytes,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_StandIn]:
        if (module, name) not in _KNOWN:
            raise _RefusedError(
                f"it asks for {module}.{name}, which a batch of images does not need; nothing of it was run"
            )
        return _KNOWN[module, name]

    def persistent_load(self, reference: Any) -> Any:
        raise _RefusedError(f"it refers to {reference!r} outside of the file")
