"""Settings with several values, such as `search.mu=0.01,0.1` on the command line, or a list in a file of runs.

Values are separated by commas outside of brackets, braces and quotes: `spec.bits=[2,4,8],[4,8]` has two values, and
`data.folder="a,b"` has one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bayesbits.recipes.toml import options_from

_OPENING, _CLOSING, _QUOTES = "[{", "]}", "\"'"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Setting:
    """One setting of a recipe with its value."""

    path: tuple[str, ...]
    """The keys that lead to it, such as ("search", "mu")."""
    value: Any
    """A value of TOML."""

    @property
    def key(self) -> str:
        """The keys as TOML writes them, such as "search.mu"."""
        return ".".join(part if _BARE_KEY.fullmatch(part) else json.dumps(part) for part in self.path)

    @property
    def text(self) -> str:
        """The value in a short form."""
        return value_text(self.value)

    @property
    def table(self) -> dict[str, Any]:
        """The setting as a table that overrides a recipe."""
        table: Any = self.value
        for part in reversed(self.path):
            table = {part: table}
        return dict(table)


@dataclass(frozen=True)
class Axis:
    """A setting with all of its values: an axis of the grid."""

    settings: tuple[Setting, ...]

    def __post_init__(self) -> None:
        texts = [setting.text for setting in self.settings]
        twice = next((text for text in texts if texts.count(text) > 1), None)
        if twice is not None:
            raise ValueError(f"{self.key} has the value {twice} twice")

    @property
    def key(self) -> str:
        """The key of the setting."""
        return self.settings[0].key


def value_text(value: Any) -> str:
    """A value in a short form: texts as they are, lists and tables as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def axis(path: Iterable[str], values: Iterable[Any]) -> Axis:
    """The axis of a setting."""
    return Axis(tuple(Setting(tuple(path), value) for value in values))


def read_axis(text: str) -> Axis:
    """The axis of an option such as `search.mu=0.01,0.1`; with one value it is as in `bayesbits search`."""
    key, equals, values = text.partition("=")
    parts = split_values(values) if equals else [""]
    if len(parts) > 1 and not all(parts):
        raise ValueError(f"{text!r} has an empty value; several values are written as search.mu=0.01,0.1")
    path = _path(options_from([f"{key}=0" if equals else text]))
    return axis(path, (_value_at(path, options_from([f"{key}={part}"])) for part in parts))


def read_axes(texts: Iterable[str]) -> list[Axis]:
    """The axes of several options; a key that is given twice is an error."""
    axes: list[Axis] = []
    for text in texts:
        found = read_axis(text)
        if any(found.key == other.key for other in axes):
            raise ValueError(f"{found.key} is given twice; several values of it are written as {found.key}=A,B")
        axes.append(found)
    return axes


def _path(table: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of a table with one entry, in which is a table with one entry, and so on."""
    ((key, value),) = table.items()
    return (key, *(_path(value) if isinstance(value, Mapping) else ()))


def _value_at(path: Iterable[str], table: Mapping[str, Any]) -> Any:
    value: Any = table
    for key in path:
        value = value[key]
    return value


def leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[Setting]:
    """Every value in tables within tables; a quoted key with dots, such as "search.mu", is one of several parts."""
    found = []
    for key, value in table.items():
        place = (*path, *(key.split(".") if not path else (key,)))
        found += leaves(value, place) if isinstance(value, Mapping) and value else [Setting(place, value)]
    return found


def split_values(text: str) -> list[str]:
    """The parts between commas that are outside of brackets, braces and quotes, without spaces around them."""
    parts, depth, quote, escaped = [""], 0, "", False
    for character in text:
        if quote:
            quote = "" if character == quote and not escaped else quote
            escaped = character == "\\" and quote == '"' and not escaped
        elif character in _QUOTES and (depth or not parts[-1].strip()):  # elsewhere it is an apostrophe
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and not depth:
            parts.append("")
            continue
        parts[-1] += character
    return [part.strip() for part in parts]
