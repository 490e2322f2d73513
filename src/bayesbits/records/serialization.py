"""The JSON form that the records share: written from dataclasses, and checked field by field when it is read.

A record is a frozen dataclass of plain values, optional ones, tuples, mappings from names, and other such dataclasses.
It has a version, and text of another version is refused. A file has a checksum as well, so that a damaged file is
refused. The mappings of a record cannot be changed, as the record itself cannot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, NoReturn, Self, TypeVar, get_args, get_origin, get_type_hints

from bayesbits.utils.files import write_atomically

Part = TypeVar("Part")
CHECKSUM = "checksum"


class FrozenMapping(dict[str, Any]):
    """A dict that cannot be changed; `dict(mapping)` and `mapping | {...}` are ordinary ones."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("the mappings of a record cannot be changed; make a new record with dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> Any:
        return type(self), (dict(self),)


def freeze_mappings(part: Any) -> None:
    """Replace the mappings of a frozen dataclass by mappings that cannot be changed."""
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Mapping):
            object.__setattr__(part, field.name, FrozenMapping(value))


@dataclass(frozen=True)
class Record:
    """The JSON form of a record, as text and in a file; a subclass has a field `version` whose default is `VERSION`."""

    VERSION: ClassVar[int]

    def __post_init__(self) -> None:
        freeze_mappings(self)

    def to_json(self) -> str:
        """This record as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The record that `to_json` wrote; a ValueError that names the field where the text is not one."""
        name = cls.__name__
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"this is not a {name}: the text is not JSON ({error})") from error
        if not isinstance(data, dict):
            raise ValueError(f"this is not a {name}: expected a JSON object, found {type(data).__name__}")
        if CHECKSUM in data and data.pop(CHECKSUM) != _checksum(data):
            raise ValueError(
                f"this {name} is damaged or was edited: its content does not have the checksum that it names. What was "
                f"edited on purpose is read without its field {CHECKSUM!r}"
            )
        if data.get("version") != cls.VERSION:
            raise ValueError(
                f"{name} version {data.get('version')!r} cannot be read; this library reads {cls.VERSION}. "
                "Make it again with this version of the library, or read it with the version that wrote it"
            )
        return _read_fields(cls, data, name)

    def save(self, path: str | Path) -> None:
        """Write the JSON form to a file, at once: an interrupted process leaves the old file or the new one."""
        data = json.loads(self.to_json())
        write_atomically(path, json.dumps({**data, CHECKSUM: _checksum(data)}).encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the JSON form from a file."""
        try:
            text = Path(path).read_bytes().decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is damaged, or not a {cls.__name__}: it is not text ({error})") from error
        return cls.from_json(text)


def find_by_name(parts: Mapping[str, Part], name: str, what: str) -> Part:
    """The part of this name; otherwise a KeyError that lists the names. `what` says what the parts are."""
    try:
        return parts[name]
    except KeyError:
        raise KeyError(f"no {what} is called {name!r}; there are: {', '.join(parts)}") from None


def _checksum(data: Mapping[str, Any]) -> str:
    """The checksum of the content; the order of the fields and white space do not matter."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _read_fields(cls: type[Part], data: Any, where: str) -> Part:
    """A dataclass from a JSON object with exactly its fields; those with a default may be missing, in older files."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected a JSON object, found {type(data).__name__}")
    expected = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    needed = {field.name for field in fields(cls) if field.default is MISSING}  # type: ignore[arg-type]
    missing, unknown = sorted(needed - data.keys()), sorted(data.keys() - expected)
    if missing or unknown:
        raise ValueError(f"{where}: missing fields {missing}, unknown fields {unknown}")
    types = get_type_hints(cls)
    return cls(**{name: _read_value(types[name], data[name], f"{where}.{name}") for name in data})


def _read_value(expected: Any, value: Any, where: str) -> Any:
    """A field's value, checked against its annotation, which is one of the types named at the head of this file."""
    if get_origin(expected) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list, found {type(value).__name__}")
        item = get_args(expected)[0]
        return tuple(_read_value(item, entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if get_origin(expected) is Mapping:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: expected a JSON object, found {type(value).__name__}")
        item = get_args(expected)[1]
        return {name: _read_value(item, entry, f"{where}[{name!r}]") for name, entry in value.items()}
    if NoneType in get_args(expected):
        return None if value is None else _read_value(get_args(expected)[0], value, where)
    if expected is float and type(value) is int:  # JSON does not tell 1.0 from 1
        return float(value)
    if expected in (str, int, bool, float):
        if type(value) is not expected:
            raise ValueError(f"{where}: expected {expected.__name__}, found {type(value).__name__}")
        return value
    return _read_fields(expected, value, where)
