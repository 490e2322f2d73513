"""Classes of containers that can be built again from their parts: named tuples, dataclasses, and dicts that are those.

A stored network names such a class. Reading the name runs no code from the file: a class is taken from what the process
has imported or seen, or imported from an installed package, and it is used only where it is such a container.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

_seen: WeakValueDictionary[str, type] = WeakValueDictionary()
"""The classes that this process has named, those included that no import finds, such as classes inside functions."""


def name_class(cls: type) -> str:
    """The name by which `find_class` finds a class again; "" for plain containers and for classes of other kinds."""
    if cls in (dict, tuple, list) or not _is_container(cls):
        return ""
    name = f"{cls.__module__}:{cls.__qualname__}"
    _seen[name] = cls
    return name


def find_class(name: str) -> type | None:
    """The class of this name; None where there is no such container, or its package is not installed."""
    if name in _seen:
        return _seen[name]
    module_name, _, path = name.partition(":")
    try:
        if module_name not in sys.modules and _is_installed(module_name.partition(".")[0]):
            importlib.import_module(module_name)
        found: Any = sys.modules[module_name]
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, KeyError, ValueError):
        return None
    return found if isinstance(found, type) and _is_container(found) else None


def field_names(cls: type) -> list[str]:
    """The fields that a dataclass is built from."""
    return [field.name for field in fields(cls) if field.init]


def build_container(cls: type, keys: Sequence[str], parts: Sequence[Any]) -> Any:
    """A container of this class; `keys` are those of a dict or dataclass."""
    if issubclass(cls, tuple):
        return cls._make(parts)  # type: ignore[attr-defined]
    if is_dataclass(cls):
        return cls(**dict(zip(keys, parts, strict=True)))
    return OrderedDict(zip(keys, parts, strict=True))


def _is_container(cls: type) -> bool:
    if issubclass(cls, tuple):
        return hasattr(cls, "_make") and hasattr(cls, "_fields")
    return is_dataclass(cls) if not issubclass(cls, Mapping) else is_dataclass(cls) or cls is OrderedDict


def _is_installed(package: str) -> bool:
    """Whether a package lies where packages are installed, and not, say, in the working directory."""
    spec = importlib.util.find_spec(package)
    places = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")]
    origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    return origin is not None and any(origin.is_relative_to(place) for place in places)
