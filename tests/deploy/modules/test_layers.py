"""Layers that compute with codes: the runtime's arithmetic, operation by operation, in numpy."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesbits.deploy.exact_sums import EXACT_IN_FLOAT32, largest_sum
from bayesbits.deploy.modules.layers import ExactLayer, FloatLayer, make_layer
from bayesbits.records.integer_network import Grid, IntegerNetwork
from tests.records.test_integer_network import STRUCTURE, layer


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


def test_a_bias_of_float_is_added_to_the_numbers():
    codes, steps = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8), torch.tensor([0.1, 0.3])
    bias = torch.tensor([0.7, -1e9])
    read = Grid("x", 8, False, float(np.float32(0.2)), 0, 255, 51.0)
    net = network(codes, bias, steps, [read])
    module = ExactLayer(net, net.layer("a"))
    assert module.adds_bias_to_numbers
    assert not module.wide  # the bias is no part of the sums
    sums = np.array([[6 - 2, 18 + 4]], np.float32)
    expected = sums * (np.float32(read.step) * steps.numpy()) + bias.numpy()
    assert np.array_equal(module(torch.tensor([[6.0, 1.0]])).numpy(), expected)


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


GEOMETRY = {"stride": 2, "padding": 1, "dilation": 2, "output_padding": 1}


def spatial(kind: str, axes: int, groups: int, **more):
    """A convolution of 4 channels to 6 with random codes and a step for each output channel, and its network."""
    draw = torch.Generator().manual_seed(axes)
    transposed = kind == "conv_transpose"
    shape = (4, 6 // groups) if transposed else (6, 4 // groups)
    codes = torch.randint(-7, 8, (*shape, *[3] * axes), generator=draw, dtype=torch.int8)
    bias, steps = torch.arange(-3, 3, dtype=torch.int32) * 5, torch.rand(6, generator=draw) + 0.1
    geometry = {name: (value,) * axes for name, value in GEOMETRY.items() if transposed or name != "output_padding"}
    read, made = Grid("x", 8, False, 0.25, 0, 255, 1.0), Grid("y", 4, False, 8.0, 0, 15, 1.0)
    net = network(codes, bias, steps, [read, made], kind=kind, groups=groups, **geometry, **more)
    x = torch.randint(0, 256, (2, 4, *[7] * axes), generator=draw)
    function = getattr(torch.nn.functional, f"{kind}{axes}d")
    sums = function(x.double(), codes.double(), bias.double(), groups=groups, **geometry)
    return net, x.float(), sums, steps.reshape(-1, *[1] * axes)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["conv", "conv_transpose"])
def test_convolutions_scale_every_output_channel_by_its_own_step(kind, axes, groups):
    net, x, sums, steps = spatial(kind, axes, groups)
    module = ExactLayer(net, net.layer("a"))
    assert module.wide is False
    assert torch.equal(module(x), sums.float() * (0.25 * steps))
    net, x, sums, steps = spatial(kind, axes, groups, output="y", output_low=1, output_high=13)
    codes = torch.round(sums.float() * (0.25 * steps / 8.0)).clamp(1, 13)
    assert torch.equal(make_layer(net, net.layer("a"))(x), codes)
    assert 1 < codes.float().mean() < 13


@pytest.mark.parametrize(("kind", "groups"), [("conv", 1), ("conv", 2), ("conv_transpose", 1)])
def test_a_layer_in_float_has_the_numbers_of_its_codes_or_its_own(kind, groups):
    net, x, _, steps = spatial(kind, 2, groups, arithmetic="float", reason="asked for")
    entry, bias = net.layer("a"), torch.randn(6)
    net = IntegerNetwork(net.structure, {**net.tensors, "a.bias": bias})
    module = make_layer(net, entry)
    assert isinstance(module, FloatLayer)
    codes = net.codes("a").double()
    weight = codes * steps.double().reshape((-1, 1, 1, 1) if kind == "conv" else (1, -1, 1, 1))
    torch.testing.assert_close(module.weight, weight.float())
    whole = getattr(torch.nn.functional, f"{kind}2d")
    geometry = {name: getattr(entry, name) for name in GEOMETRY if getattr(entry, name)}
    torch.testing.assert_close(module(x), whole(x, weight.float(), bias, groups=groups, **geometry))
    plain = IntegerNetwork(net.structure, {**net.tensors, "a.weight": torch.ones(entry.weight_shape)})
    assert torch.equal(FloatLayer(plain, entry).weight, torch.ones(entry.weight_shape))
    assert "4-bit weights, float: asked for" in repr(module)


@pytest.mark.parametrize(("bias", "wide"), [(2**24 - 2, False), (2**24 - 1, True)])
def test_sums_below_two_to_the_24_are_exact_in_float32(bias, wide):
    net = network(
        torch.ones(1, 1, dtype=torch.int8), torch.tensor([bias], dtype=torch.int32), torch.ones(1),
        [Grid("x", 2, True, 1.0, -1, 1, 1.0)],
    )  # fmt: skip
    module = ExactLayer(net, net.layer("a"))
    assert module.wide is wide
    assert module(torch.ones(1, 1)).item() == bias + 1


def test_layers_say_what_they_do():
    grid = Grid("x", 4, True, 0.5, -7, 7, 1.0)
    tensors = torch.ones(3, 2, dtype=torch.int8), torch.zeros(3, dtype=torch.int32), torch.ones(1), [grid]
    net = network(*tensors)
    assert repr(ExactLayer(net, net.layer("a"))) == "ExactLayer(linear (3, 2), 4-bit weights, emits numbers)"
    net = network(*tensors, output="x", output_low=0, output_high=5)
    assert "emits codes 0..5" in repr(ExactLayer(net, net.layer("a")))


def linear(codes, steps, bias, **more) -> IntegerNetwork:
    """A linear layer that reads numbers."""
    entry = layer("a", "a.weight", kind="linear", weight_shape=tuple(codes.shape), input=None, output=None, **more)
    tensors = {"a.codes": codes, "a.steps": steps} | ({} if bias is None else {"a.bias": bias})
    return IntegerNetwork(dataclasses.replace(STRUCTURE, layers=(entry,), grids=()), tensors)


@pytest.mark.parametrize("bias", [None, torch.tensor([1.0, -1.0])])
def test_a_layer_that_quantizes_at_run_time_by_hand(bias):
    codes = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
    record = linear(codes, torch.tensor([0.5, 0.25]), bias, arithmetic="integer", dynamic=True)
    module = make_layer(record, record.layers[0])
    x = torch.tensor([[-1.0, 2.0], [0.5, 254.0]])  # a step of 1, a zero point of 1, and a tie that goes to 0
    found, step, zero_point = module.quantized(x)
    assert (found.tolist(), step.item(), zero_point.item()) == ([[-1, 2], [0, 254]], 1.0, 1.0)
    assert module.sums(found).tolist() == [[-5, 5], [-508, 1016]]
    expected = torch.tensor([[-2.5, 1.25], [-254.0, 254.0]]) + (0 if bias is None else bias)
    assert torch.equal(module(x), expected)
    assert torch.equal(module.exact(x), expected.double())
    in_float = dataclasses.replace(record.layers[0], arithmetic="float")
    assert torch.equal(make_layer(record, in_float)(x), expected)
    assert torch.equal(make_layer(record, in_float).exact(x), expected.double())
    exported = torch.export.export(module, (x,), strict=False)
    assert torch.equal(exported.module()(3 * x), module(3 * x))


def test_long_sums_at_run_time_are_exact():
    codes = torch.full((1, 4001), 127, dtype=torch.int8)
    codes[0, 0] = 1
    record = linear(codes, torch.tensor([1.0]), None, arithmetic="integer", dynamic=True)
    module = make_layer(record, record.layers[0])
    assert module.wide
    assert module.sums(torch.full((1, 4001), 255.0)).item() == 255 * (127 * 4000 + 1)
    assert not make_layer(linear(codes[:, :100], torch.tensor([1.0]), None, arithmetic="integer", dynamic=True),
                          record.layers[0]).wide  # fmt: skip


def test_groups_of_inputs_have_their_own_steps():
    codes = torch.tensor([[1, 2, 3], [-1, 0, 7]], dtype=torch.int8)
    record = linear(codes, torch.tensor([[1.0, 10.0], [2.0, 0.5]]), None, arithmetic="float", group_size=2)
    weight = make_layer(record, record.layers[0]).weight
    assert weight.tolist() == [[1, 2, 30], [-2, 0, 3.5]]
