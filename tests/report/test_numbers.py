"""Numbers as people read them."""

import pytest

from bayesbits.report.numbers import count, duration, part_of, size, times


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (size(528), "528 bytes"),
        (size(2_328_104), "2.33 MB"),
        (size(7e12), "7e+03 GB"),
        (count(10), "10"),
        (count(582_026), "582 k"),
        (times(100, 0.971, "fewer"), "103x fewer"),
        (times(100, 75, "fewer"), "1.3x fewer"),
        (part_of(64, 64), "64"),
        (part_of(976, 1024), "976 of 1024"),
        (duration(63.6), "64 s"),
        (duration(627), "10 min"),
        (duration(9000), "2.5 h"),
    ],
)
def test_numbers_read_well(written, expected):
    assert written == expected
