"""Numbers as text, in units that suit their size."""

import pytest

from bayesbits.report.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_number_of,
    format_part,
    format_percent,
    format_reduction,
    format_seconds,
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
        (format_reduction(100, 75, "fewer"), "25% fewer"),
        (format_reduction(4_267_008, 4_151_200, "fewer"), "2.7% fewer"),
        (format_reduction(100, 50, "fewer"), "2x fewer"),
        (format_reduction(100_000, 1, "fewer"), "100,000x fewer"),
        (format_percent(0.0421), "0.04%"),
        (format_percent(3.04), "3%"),
        (format_seconds(2.5), "2.5 s"),
        (format_seconds(0.003417), "3.42 ms"),
        (format_seconds(8.51e-5), "85.1 µs"),
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
