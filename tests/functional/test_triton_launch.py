"""The constants with which kernels are launched; `test_triton_kernels` has the numbers that the launches return."""

import pytest

launch = pytest.importorskip("bayesbits.functional.triton_launch")


def test_widths_are_chained_where_each_grid_divides_the_next_and_float32_holds_it():
    doubling = launch._widths((2, 4, 8, 16, 32), True)
    assert doubling["LEVELS"] == (3, 15, 255, 65535, 0)
    assert (doubling["GRIDS"], doubling["LARGEST"], doubling["CHAIN"]) == (4, 32767.0, True)
    assert launch._widths((2, 4, 8), False)["LARGEST"] == 255.0
    others = [launch._widths(bits, True)["CHAIN"] for bits in ((8,), (2, 3), (9, 18), (32,))]
    assert others == [False, False, False, False]
    assert launch._widths((32,), True)["GRIDS"] == 0


def test_asymmetric_ranges_chain_their_widths_and_allow_for_the_largest_code():
    constants = launch._widths((2, 4, 8), True, True)
    assert (constants["LARGEST"], constants["CHAIN"], constants["ASYMMETRIC"]) == (255.0, True, True)
    assert not launch._widths((2, 4, 8), True)["ASYMMETRIC"]
