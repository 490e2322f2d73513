"""Labels overlap neither each other nor markers."""

from itertools import combinations

from docs.labels import along_line, free_place, overlap

FRAME = (0.0, 0.0, 300.0, 200.0)


def test_boxes_overlap_where_they_share_more_than_an_edge():
    assert overlap((0, 0, 2, 2), (1, 1, 3, 3))
    assert not overlap((0, 0, 2, 2), (2, 0, 3, 2))
    assert not overlap((0, 0, 2, 2), (0, 3, 2, 4))


def test_a_label_is_right_of_its_marker_or_where_nothing_else_is():
    free = free_place("label", (100, 100), [], FRAME)
    assert free[0] > 100
    assert free[1] < 100 < free[3]
    other = free_place("label", (100, 100), [free], FRAME)
    assert not overlap(free, other)
    at_the_edge = free_place("label", (298, 100), [], FRAME)
    assert at_the_edge[2] < 298
    assert free_place("label", (100, 100), [FRAME], FRAME) is None


def test_labels_of_many_points_overlap_neither_each_other_nor_markers():
    places = [(100 + 7 * number, 100 + 3 * (number % 4)) for number in range(12)]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    found = []
    for number, place in enumerate(places):
        box = free_place(f"point {number}", place, taken, FRAME)
        if box is not None:
            found.append(box)
            taken.append(box)
    assert len(found) >= 8  # markers 7 pixels apart: most have a place
    assert not any(overlap(one, other) for one, other in combinations(taken[12:], 2))
    assert not any(overlap(label, marker) for label in found for marker in taken[:12])


def test_the_name_of_a_line_moves_to_the_left_where_something_is():
    alone = along_line("float", 100, [], FRAME)
    assert alone[2] == FRAME[2] - 4
    assert alone[3] < 100
    blocked = along_line("float", 100, [(250.0, 60.0, 300.0, 140.0)], FRAME)
    assert blocked[2] <= 250
