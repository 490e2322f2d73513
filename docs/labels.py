"""Where the labels of a plot go: beside their markers where nothing else is, or farther away with a thin line.

A text is as wide as its number of characters times that of an average one, which is a little too much for most.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import cos, hypot, pi, sin

CHARACTER, TEXT, SIZE = 6.1, 11.5, 5.0
"""The width of a character, the size of the font, and that of a marker, from its middle, in pixels."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def free_place(text: str, place: tuple[float, float], taken: Iterable[Box], frame: Box) -> Box | None:
    """The nearest box for a text around a place that overlaps nothing and lies in the frame; None if there is none."""
    x, y = place
    taken = list(taken)
    width, height = CHARACTER * len(text) + 2, TEXT + 1
    for distance in (9, 13, 18, 25, 34, 45, 58, 74):
        for step in (0, 8, 4, 12, 2, 6, 10, 14, 1, 7, 9, 15, 3, 5, 11, 13):  # right and left first
            angle = step * pi / 8
            across, down = cos(angle), -sin(angle)
            center = (x + across * distance + _sign(across) * width / 2, y + down * (distance + height / 2))
            box = (center[0] - width / 2, center[1] - height / 2, center[0] + width / 2, center[1] + height / 2)
            inside = frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]
            if inside and not any(overlap(box, other) for other in taken) and not _crosses(place, box, taken):
                return box
    return None


def along_line(text: str, y: float, taken: Iterable[Box], frame: Box) -> Box:
    """A box for the name of a horizontal line: above or below it, as far to the right as nothing else is there."""
    taken, width, height = list(taken), CHARACTER * len(text) + 2, TEXT + 2
    boxes = [
        (right - width, top, right, top + height)
        for right in (frame[2] - 4 - step * 10 for step in range(int((frame[2] - frame[0] - width) / 10)))
        for top in (y - height - 2, y + 2)
    ]
    return next((box for box in boxes if not any(overlap(box, other) for other in taken)), boxes[0])


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share more than an edge."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _crosses(place: tuple[float, float], box: Box, taken: Iterable[Box]) -> bool:
    """Whether the line from a marker to its label passes over another label or marker."""
    end = nearest_place(place, box)
    if hypot(end[0] - place[0], end[1] - place[1]) < 2 * SIZE + 4:
        return False
    parts = [part / 12 for part in range(13)]
    way = [(place[0] + (end[0] - place[0]) * part, place[1] + (end[1] - place[1]) * part) for part in parts]
    return any(
        left < x < right and above < y < below
        for left, above, right, below in taken
        for x, y in way
        if hypot(x - place[0], y - place[1]) > SIZE + 3
    )


def beside_line(way: Sequence[tuple[float, float]]) -> list[Box]:
    """Small boxes along a line, which labels keep clear of."""
    boxes = []
    for (x1, y1), (x2, y2) in pairwise(way):
        steps = max(1, round(hypot(x2 - x1, y2 - y1) / 6))
        for step in range(steps + 1):
            x, y = x1 + (x2 - x1) * step / steps, y1 + (y2 - y1) * step / steps
            boxes.append((x - 1.5, y - 1.5, x + 1.5, y + 1.5))
    return boxes


def nearest_place(place: tuple[float, float], box: Box) -> tuple[float, float]:
    """The point of a box that is nearest to a place."""
    return min(max(place[0], box[0]), box[2]), min(max(place[1], box[1]), box[3])


def _sign(value: float) -> float:
    return 0.0 if abs(value) < 1e-9 else value / abs(value)
