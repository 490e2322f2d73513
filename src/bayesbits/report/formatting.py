"""Numbers as text: bytes, counts, ratios, parts and durations, for the page and for the terminal."""

from math import inf

_SMALL_RATIO = 1.1  # below this a ratio such as "1.05x" says less than a percentage
_BYTE_UNITS = ("bytes", "kB", "MB", "GB")
_COUNT_UNITS = ("", "k", "M", "G", "T")


def format_bytes(number: float) -> str:
    """A number of bytes in a suitable unit, such as "2.33 MB"."""
    for unit in _BYTE_UNITS[:-1]:
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} {_BYTE_UNITS[-1]}"


def format_count(number: float) -> str:
    """A count in thousands, millions and so on, such as "582 k"."""
    for unit in _COUNT_UNITS[:-1]:
        if number < 1000:
            return f"{number:.3g} {unit}" if unit else f"{number:.0f}"
        number /= 1000
    return f"{number:.3g} {_COUNT_UNITS[-1]}"


def format_reduction(before: float, after: float, comparative: str) -> str:
    """The ratio of two numbers, such as "19x smaller"; a small reduction in percent, such as "2% smaller"."""
    if after >= before:
        return f"not {comparative}"
    ratio = before / after if after else inf
    if ratio < _SMALL_RATIO:
        return f"{100 * (1 - after / before):.2g}% {comparative}"
    return f"{ratio:.0f}x {comparative}" if ratio >= 10 else f"{ratio:.2g}x {comparative}"


def format_part(part: int, whole: int, separator: str = " of ") -> str:
    """A part of a whole, such as "976 of 1024"; one number where they are equal."""
    return f"{part}" if part == whole else f"{part}{separator}{whole}"


def format_number_of(number: int, noun: str) -> str:
    """A number of things, such as "3 runs" and "1 run"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours, such as "10 min"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
