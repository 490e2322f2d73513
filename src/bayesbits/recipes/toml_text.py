"""Tables as the text of a TOML file, which `tomllib` reads back as equal tables; Python itself only reads TOML."""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def table_text(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Plain values first, then the tables inside, each under a heading with its path.

    Args:
        table: Text, numbers, flags, lists of these, and tables, by key.
        path: The keys that lead to the table.

    Returns:
        The text, a line for each value.

    Raises:
        TypeError: If a value is none of these; the message has its path.
    """
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value, (*path, key))}\n" for key, value in plain.items()]
    if path and (lines or not table):
        lines.insert(0, f"[{'.'.join(map(_key, path))}]\n")
    parts = ["".join(lines)]
    parts += [table_text(value, (*path, key)) for key, value in table.items() if key not in plain]
    return "\n".join(part for part in parts if part)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(one, path) for one in value)}]"
    if isinstance(value, Mapping):  # in a list
        return f"{{{', '.join(f'{_key(key)} = {_value(one, (*path, key))}' for key, one in value.items())}}}"
    raise TypeError(f"{'.'.join(path)} is {value!r}, a {type(value).__name__}, which TOML does not have")


def _quoted(text: str) -> str:
    """JSON's escapes are TOML's, but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
