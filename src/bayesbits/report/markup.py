"""Markup that is safe by construction: whatever is not markup already is text, and text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = {"meta"}  # elements that have no end


class Markup(str):
    """Text that is markup, and is taken as it is."""


def tag(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """An element. Attributes are written as Python names: `class_` is class, `text_anchor` is text-anchor."""
    named = "".join(f' {_name(key)}="{_value(value)}"' for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{named}>")
    return Markup(f"<{name}{named}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Parts one behind the other; those that are not markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else _text(part) for part in parts))


def _name(key: str) -> str:
    return key.removesuffix("_").replace("_", "-")


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return _text(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")  # a hundredth of a pixel is enough


def _text(text: str) -> str:
    """Escaped, and without characters that are not seen but change what is: controls, and marks that turn lines."""
    return escape("".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text))
