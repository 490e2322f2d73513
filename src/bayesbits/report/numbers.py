"""Numbers as people read them."""

from math import inf

_HARDLY = 1.1  # times fewer
_UNITS = ("bytes", "kB", "MB", "GB")
_COUNTS = ("", "k", "M", "G", "T")


def size(number: float) -> str:
    """Bytes in a unit that reads well."""
    for unit in _UNITS[:-1]:
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} {_UNITS[-1]}"


def count(number: float) -> str:
    """How many, in thousands, millions and so on."""
    for unit in _COUNTS[:-1]:
        if number < 1000:
            return f"{number:.0f}" if not unit else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} {_COUNTS[-1]}"


def times(before: float, after: float, what: str) -> str:
    """How many times fewer or smaller, such as "19x smaller"; where that is hardly any, by how many percent."""
    if after >= before:
        return f"not {what}"
    ratio = before / after if after else inf
    if ratio < _HARDLY:
        return f"{100 * (1 - after / before):.2g}% {what}"
    return f"{ratio:.0f}x {what}" if ratio >= 10 else f"{ratio:.2g}x {what}"


def part_of(kept: int, number: int, between: str = " of ") -> str:
    """How many of how many, and only one number where that is all."""
    return f"{kept}" if kept == number else f"{kept}{between}{number}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
