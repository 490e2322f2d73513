"""Numbers as text, in units that suit their size."""

import pytest

from bayesbits.report.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_number_of,
    format_part,
    format_reduction,
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (format_bytes(528), "528 bytes"),
        (format_bytes(2_328_104), "2.33 MB"),
        (format_bytes(7e12), "7e+03 GB"),
        (format_count(10), "10"),
        (format_count(582_026), "582 k"),
        (format_reduction(100, 0.971, "fewer"), "103x fewer"),
        (format_reduction(100, 75, "fewer"), "1.3x fewer"),
        (format_reduction(100, 99.3, "fewer"), "0.7% fewer"),
        (format_reduction(100, 100, "fewer"), "not fewer"),
        (format_number_of(2, "run"), "2 runs"),
        (format_number_of(1, "run"), "1 run"),
        (format_part(64, 64), "64"),
        (format_part(976, 1024), "976 of 1024"),
        (format_part(976, 1024, "/"), "976/1024"),
        (format_duration(63.6), "64 s"),
        (format_duration(627), "10 min"),
        (format_duration(9000), "2.5 h"),
    ],
)
def test_numbers_read_well(written, expected):
    assert written == expected
