"""Short names, without their middle or with initials, and never two of them the same; and long lists of names."""

from __future__ import annotations

from collections.abc import Sequence

ELLIPSIS = "..."
MOST_NAMES = 3
"""How many names a message lists."""


def shorten_names(names: Sequence[str], length: int, ellipsis: str = ELLIPSIS) -> list[str]:
    """Names of at most this length that stay distinct, without the middle or with initials.

    Where no such names are distinct, they are as much longer as they need to be.
    """
    for allowed in range(length, max(map(len, names), default=0)):
        for shorten in (_without_middle, _with_initials):
            short = [name if len(name) <= allowed else shorten(name, allowed, ellipsis) for name in names]
            if len(set(short)) == len(set(names)) and max(map(len, short)) <= allowed:
                return short
    return list(names)


def list_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are, such as "a, b, c and 2 more"."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _without_middle(name: str, length: int, ellipsis: str) -> str:
    """The end keeps more characters, since it distinguishes most layers."""
    head = max(0, length - len(ellipsis)) // 3
    return name[:head] + ellipsis + name[max(head, len(name) - (length - len(ellipsis) - head)) :]


def _with_initials(name: str, length: int, ellipsis: str) -> str:
    """The first parts of the name become initials, as many as necessary; numbers stay."""
    parts = name.split(".")
    for place, part in enumerate(parts[:-1]):
        if len(".".join(parts)) > length and not part.isdigit():
            parts[place] = part[:1]
    return ".".join(parts)
