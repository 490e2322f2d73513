"""Numbers as text: bytes, counts, ratios, parts and durations, as people say them, for the page and the terminal."""

from math import inf

_SMALL_RATIO = 2.0  # below this people say a percentage: "3% fewer", not "1.03x fewer"
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
    """The ratio of two numbers, such as "19x smaller"; below 2 in percent, such as "3% fewer"."""
    if after >= before:
        return f"not {comparative}"
    ratio = before / after if after else inf
    if ratio < _SMALL_RATIO:
        return f"{format_percent(100 * (1 - after / before))} {comparative}"
    return f"{ratio:,.0f}x {comparative}" if ratio >= 10 else f"{ratio:.2g}x {comparative}"


def format_percent(percent: float) -> str:
    """A percentage with as many digits as it needs, such as "0.04%", "3%" or "47%"."""
    if percent >= 10:
        return f"{percent:.0f}%"
    return f"{percent:.1f}".removesuffix(".0") + "%" if percent >= 0.1 else f"{percent:.1g}%"


def format_seconds(seconds: float) -> str:
    """A short time, such as "3.42 ms" or "85.1 µs"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


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
