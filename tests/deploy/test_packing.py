"""Packed codes: as many bits as they have, and back without loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesbits.deploy.packing import pack, unpack
from bayesbits.functional import code_bounds


@settings(max_examples=100, deadline=None)
@given(data=st.data(), bits=st.integers(2, 16), shape=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_there_and_back(data, bits, shape):
    low, high = code_bounds(bits, signed=True)
    count = int(torch.tensor(shape).prod())
    values = data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    codes = torch.tensor(values, dtype=torch.int32).reshape(shape)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == (count * bits + 7) // 8
    assert torch.equal(unpack(packed, bits, tuple(shape)).int(), codes)


def test_four_codes_of_two_bits_lie_in_one_byte_lowest_first():
    assert pack(torch.tensor([-1, 0, 1, 0]), 2).tolist() == [0b01_10_01_00]
    assert pack(torch.tensor([-7, 7]), 4).tolist() == [0b1110_0000]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="codes from 0 to 2 do not fit 2 bits"):
        pack(torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match="5 codes of 2 bits take 2 bytes, found 1"):
        unpack(torch.zeros(1, dtype=torch.uint8), 2, (5,))
    with pytest.raises(ValueError, match="a code of 2 stands among codes of 2 bits, which end at 1"):
        unpack(torch.full((1,), 255, dtype=torch.uint8), 2, (4,))
