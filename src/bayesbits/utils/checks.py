"""Checks of what a user chooses; the errors name the option, what was given, and what is allowed."""

import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any


def is_integer(value: Any) -> bool:
    """Whether this is an integer; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether this is a finite number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_choice(options: object, name: str, allowed: Sequence[str]) -> None:
    """Raise unless an option is one of some words."""
    value = getattr(options, name)
    if value not in allowed:
        nearest = get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{_called(options, name)} is {value!r}; it is one of {', '.join(allowed)}{hint}")


def check_flag(options: object, name: str) -> None:
    """Raise unless an option is True or False."""
    if not isinstance(getattr(options, name), bool):
        raise ValueError(f"{_called(options, name)} is {getattr(options, name)!r}; it is True or False")


def check_integer(options: object, name: str, least: int) -> None:
    """Raise unless an option is an integer that is large enough."""
    value = getattr(options, name)
    if not is_integer(value) or value < least:
        raise ValueError(f"{_called(options, name)} is {value!r}; it is an integer of at least {least}")


def check_number(options: object, name: str, least: float, most: float = math.inf) -> None:
    """Raise unless an option is a finite number in these bounds."""
    value = getattr(options, name)
    if not is_number(value) or not least <= value <= most:
        bounds = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{_called(options, name)} is {value!r}; it is a number {bounds}")


def check_positive(options: object, name: str) -> None:
    """Raise unless an option is a finite number above zero."""
    value = getattr(options, name)
    if not is_number(value) or value <= 0:
        raise ValueError(f"{_called(options, name)} is {value!r}; it is a positive number")


def check_type(options: object, name: str, expected: Any, words: str) -> None:
    """Raise unless an option is of a type, which `words` describe."""
    value = getattr(options, name)
    if not isinstance(value, expected):
        raise ValueError(f"{_called(options, name)} is {value!r}; it is {words}")


def _called(options: object, name: str) -> str:
    return f"{type(options).__name__}.{name}"
