"""Products of two activations: the runtime's arithmetic, operation by operation, in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesbits.deploy.modules.products import ExactProduct, FloatProduct, make_product
from bayesbits.records.integer_network import Grid, IntegerNetwork, IntegerProduct
from tests.records.test_integer_network import STRUCTURE

LEFT = Grid("left", 8, True, float(np.float32(0.037)), -127, 127, 4.7)
RIGHT = Grid("right", 8, False, float(np.float32(0.11)), 0, 255, 28.0)
OUTPUT = Grid("output", 4, True, float(np.float32(9.1)), -7, 7, 64.0)
PRODUCT = IntegerProduct("attention", "integer", None, "left", "right", None, 0, 0, macs=1)
NETWORK = IntegerNetwork(replace(STRUCTURE, products=(PRODUCT,), grids=(LEFT, RIGHT, OUTPUT)), {})


@pytest.mark.parametrize("emits_codes", [False, True])
def test_an_exact_product_is_integer_arithmetic(emits_codes):
    draw = torch.Generator().manual_seed(0)
    left = torch.randint(-127, 128, (2, 3, 5, 40), generator=draw)
    right = torch.randint(0, 256, (2, 3, 40, 6), generator=draw)
    product = replace(PRODUCT, output="output", output_low=-5, output_high=6) if emits_codes else PRODUCT
    found = make_product(NETWORK, product)(left.float(), right.float())
    sums = np.matmul(left.numpy(), right.numpy()).astype(np.float32)
    scale = np.float32(LEFT.step) * np.float32(RIGHT.step)
    codes = np.clip(np.rint(sums * (scale / np.float32(OUTPUT.step))), -5, 6)
    assert np.array_equal(found.numpy(), codes if emits_codes else sums * scale)
    assert {codes.min(), codes.max()} == {-5, 6}


def test_sums_beyond_float32_are_exact():
    left, right = torch.full((1, 1200), 127.0), torch.full((1200, 1), 255.0)
    left[0, 1::2] = -126.0
    unit = replace(NETWORK.structure, grids=(replace(LEFT, step=1.0), replace(RIGHT, step=1.0)))
    assert ExactProduct(IntegerNetwork(unit, {}), PRODUCT)(left, right).item() == 255 * 600


def test_products_say_what_they_do():
    assert repr(ExactProduct(NETWORK, PRODUCT)) == "ExactProduct(left x right, emits numbers)"
    emits = replace(PRODUCT, output="output", output_low=-5, output_high=6)
    assert repr(ExactProduct(NETWORK, emits)) == "ExactProduct(left x right, emits codes -5..6)"
    in_float = replace(PRODUCT, arithmetic="float", reason="asked for", left=None, right=None)
    module = make_product(NETWORK, in_float)
    assert isinstance(module, FloatProduct)
    assert repr(module) == "FloatProduct(float: asked for)"
    assert module(torch.tensor([[1.5, 2.0]]), torch.tensor([[2.0], [-1.0]])).item() == 1.0
