"""What computes with codes: the runtime's arithmetic, operation by operation, in numpy."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesbits.deploy.modules import EXACT_IN_FLOAT32, Dequantize, ExactLayer, Quantize, largest_sum
from bayesbits.integer import Grid, IntegerNetwork
from tests.test_integer import STRUCTURE, layer


def network(codes, bias, steps, grids, **more) -> IntegerNetwork:
    entry = layer("a", "a.weight", weight_shape=tuple(codes.shape), input=grids[0].name, **more)
    structure = dataclasses.replace(STRUCTURE, layers=(entry,), grids=tuple(grids))
    return IntegerNetwork(structure, {"a.codes": codes, "a.bias": bias, "a.steps": steps})


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bits=st.sampled_from([2, 4, 8]),
    per_channel=st.booleans(),
    requantizes=st.booleans(),
    signed=st.booleans(),
)
def test_an_exact_layer_is_integer_arithmetic(seed, bits, per_channel, requantizes, signed):
    draw = torch.Generator().manual_seed(seed)
    high = 2 ** (bits - 1) - 1
    codes = torch.randint(-high, high + 1, (5, 7), generator=draw, dtype=torch.int8)
    bias = torch.randint(-(2**20), 2**20, (5,), generator=draw, dtype=torch.int32)
    steps = torch.rand(5 if per_channel else 1, generator=draw) * 0.1 + 1e-3
    low = -127 if signed else 0
    read = Grid("x", 8, signed, float(np.float32(0.037)), low, 127 if signed else 255, 1.0)
    made = Grid("y", 4, False, float(np.float32(0.71)), 0, 15, 1.0)
    output = {"output": "y", "output_low": 1, "output_high": 13} if requantizes else {}
    module = ExactLayer(net := network(codes, bias, steps, [read, made], **output), net.layer("a"))
    x = torch.randint(read.low, read.high + 1, (64, 7), generator=draw)
    sums = (x.numpy().astype(np.int64) @ codes.numpy().astype(np.int64).T + bias.numpy()).astype(np.float32)
    scale = np.float32(read.step) * steps.numpy()
    requantized = np.clip(np.rint(sums * (scale / np.float32(made.step))), 1, 13)
    expected = requantized if requantizes else sums * scale
    assert expected.dtype == np.float32
    assert np.array_equal(module(x.float()).numpy(), expected)


def test_sums_beyond_float32_are_exact():
    codes = torch.full((1, 1200), 127, dtype=torch.int8)
    codes[0, 1::2] = -126
    bias = torch.tensor([3], dtype=torch.int32)
    read = Grid("x", 8, False, 1.0, 0, 255, 255.0)
    net = network(codes, bias, torch.ones(1), [read])
    module = ExactLayer(net, net.layer("a"))
    assert module.wide
    assert largest_sum(net, net.layer("a")) == 255 * (127 + 126) * 600 + 3 > EXACT_IN_FLOAT32
    x = torch.full((1, 1200), 255.0)
    assert module(x).item() == 255 * 600 + 3


@pytest.mark.parametrize("signed", [False, True])
def test_quantizing_rounds_half_to_even_and_saturates(signed):
    grid = Grid("x", 4, signed, 0.5, -7 if signed else 0, 7 if signed else 15, 8.0)
    x = torch.tensor([-100.0, -0.75, -0.25, 0.0, 0.25, 0.75, 1.25, 100.0])
    expected = [-7, -2, 0, 0, 0, 2, 2, 7] if signed else [0, 0, 0, 0, 0, 2, 2, 15]
    codes = Quantize(grid)(x)
    assert codes.tolist() == expected
    assert Dequantize(grid)(codes).tolist() == [code * 0.5 for code in expected]
