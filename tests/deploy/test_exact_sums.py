"""How large the sums of a layer can become, and in which parts float32 holds them."""

import torch

from bayesbits.deploy.exact_sums import EXACT_IN_FLOAT32, exact_parts, largest_sum
from bayesbits.records.integer_network import Grid
from tests.deploy.modules.test_layers import network

CONV = {"kind": "conv", "stride": (1,), "padding": (0,), "dilation": (1,)}
BYTES = Grid("x", 8, False, 1.0, 0, 255, 255.0)


def test_the_largest_sum_is_that_of_the_worst_output_channel():
    signed, unsigned = Grid("x", 4, True, 1.0, -7, 7, 1.0), Grid("x", 4, False, 1.0, 0, 15, 1.0)
    codes, bias = torch.tensor([[1, -7, 0], [2, 3, -4]], dtype=torch.int8), torch.tensor([-100, 2], dtype=torch.int32)

    def bound(codes, bias, grid, **more):
        net = network(codes, bias, torch.ones(1), [grid], **more)
        return largest_sum(net, net.layer("a"))

    assert bound(codes, bias, signed) == 7 * 8 + 100
    assert bound(codes, None, signed) == 7 * 9
    assert bound(codes, None, unsigned) == 15 * 9
    transposed = {"kind": "conv_transpose", "stride": (1,)}
    kernel = codes.reshape(2, 3, 1)  # two channels in, three out
    assert bound(kernel, None, signed, **transposed) == 7 * 10
    assert bound(kernel, torch.tensor([0, -5, 9], dtype=torch.int32), signed, **transposed) == 7 * 10 + 5
    grouped = torch.tensor([[[1], [-7]], [[2], [3]]], dtype=torch.int8)  # two groups, each one channel to two
    four = torch.tensor([0, 1, -9, 2], dtype=torch.int32)
    assert bound(grouped, four, signed, groups=2, **transposed) >= 7 * 7 + 9  # a bound: channels lie within groups
    assert bound(torch.zeros(0, 3, dtype=torch.int8), None, signed) == 0


def convolution(codes, bias, **more):
    net = network(codes, bias, torch.ones(1), [BYTES], **CONV | more)
    return exact_parts(net, net.layer("a"))


def test_a_convolution_whose_sums_float32_holds_is_one_part():
    most = (EXACT_IN_FLOAT32 - 1) // (255 * 127)
    codes = torch.full((1, most, 1), 127, dtype=torch.int8)
    none, large = torch.zeros(1, dtype=torch.int32), torch.full((1,), 255 * 127, dtype=torch.int32)
    assert convolution(codes, none) == [most]
    assert len(convolution(codes, large)) == 2  # with the bias it is too much


def test_parts_are_as_few_as_possible_and_hold_every_input_channel():
    codes = torch.ones(3, 1000, 3, dtype=torch.int8)
    codes[1] = -127
    sizes = convolution(codes, torch.zeros(3, dtype=torch.int32))
    assert sum(sizes) == 1000
    assert 255 * 127 * 3 * max(sizes) < EXACT_IN_FLOAT32 <= 255 * 127 * 3 * (1000 // (len(sizes) - 1))


def test_many_parts_and_groups_of_large_sums_are_refused():
    bias = torch.zeros(2, dtype=torch.int32)
    assert convolution(torch.full((2, 5000, 1), 127, dtype=torch.int8), bias) is None
    codes = torch.full((2, 600, 1), 127, dtype=torch.int8)
    assert convolution(codes, bias) is not None
    assert convolution(codes, bias, groups=2) is None
