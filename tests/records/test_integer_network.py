"""The integer record: a versioned JSON form, and finding what is in it."""

import json
from dataclasses import replace

import pytest
import torch

from bayesbits.records.integer_network import Argument, Grid, IntegerLayer, IntegerNetwork, Structure
from bayesbits.utils.pytree import Tree

SIGNED = Grid("conv.input", bits=4, signed=True, step=0.25, low=-7, high=7, beta=1.875)
UNSIGNED = Grid("fc.input", bits=8, signed=False, step=0.1, low=0, high=255, beta=25.5)


def layer(name: str, parameter: str, **more) -> IntegerLayer:
    plain = IntegerLayer(
        name=name, kind="linear", parameter=parameter, arithmetic="integer", reason=None, bits=4, weight_shape=(3, 2),
        bias=True, input="conv.input", output=None, output_low=0, output_high=0, stride=(), padding=(), dilation=(),
        output_padding=(), groups=1, macs=6,
    )  # fmt: skip
    return replace(plain, **more)


STRUCTURE = Structure(
    layers=(layer("a", "a.weight"), layer("b", "a.weight"), layer("c", "c.weight", bits=32, bias=False)),
    grids=(SIGNED, UNSIGNED),
    takes=(Argument("x", Tree("tensor", index=0), "either", False),),
    returns=Tree("tensor", index=0),
    inputs=("x",),
    input_shapes=((1, 2),),
    input_types=("float32",),
    outputs=("output",),
    removed=(3, 5),
    batched=(True,),
    other_macs=7,
    other_parameters=11,
    notes=("c computes in float: its weight has 32 bits",),
)
CODES = torch.tensor([[1, -7], [0, 3], [7, 2]], dtype=torch.int8)
NETWORK = IntegerNetwork(
    STRUCTURE,
    {
        "a.codes": CODES,
        "a.steps": torch.tensor([0.5]),
        "a.bias": torch.zeros(3, dtype=torch.int32),
        "b.codes": CODES,
        "b.bias": torch.ones(3, dtype=torch.int32),
        "c.weight": torch.ones(3, 2),
    },
)


def test_json_and_back():
    assert Structure.from_json(STRUCTURE.to_json()) == STRUCTURE


def test_json_is_checked():
    data = json.loads(STRUCTURE.to_json())
    with pytest.raises(ValueError, match="Structure version 3 cannot be read"):
        Structure.from_json(json.dumps(data | {"version": 3}))
    data["grids"][0]["step"] = "wide"
    with pytest.raises(ValueError, match=r"Structure\.grids\[0\]\.step: expected float, found str"):
        Structure.from_json(json.dumps(data))
    data["grids"][0]["step"] = 1
    assert Structure.from_json(json.dumps(data)).grids[0].step == 1.0


def test_carriers_and_zero_points():
    assert (SIGNED.carrier, SIGNED.zero_point) == ("uint8", 128)
    assert (UNSIGNED.carrier, UNSIGNED.zero_point) == ("uint8", 0)
    wide = Grid("x", bits=16, signed=True, step=1e-3, low=-32767, high=32767, beta=32.0)
    assert (wide.carrier, wide.zero_point) == ("uint16", 32768)
    assert Grid("x", bits=32, signed=True, step=1e-9, low=-1, high=1, beta=1.0).carrier is None


def test_counts():
    assert NETWORK.parameter_count == 6 + 3 + 3 + 6 + 11  # a tied weight once, each bias, the float weight, the rest
    assert NETWORK.macs == 6 * 3 + 7


def test_finding():
    assert NETWORK.layer("b").name == "b"
    assert NETWORK.grid("fc.input") is UNSIGNED
    assert NETWORK.bias("c") is None
    assert torch.equal(NETWORK.codes("a"), CODES)
    with pytest.raises(KeyError, match="no layer is called 'd'; there are: a, b, c"):
        NETWORK.layer("d")
    with pytest.raises(KeyError, match="no quantized tensor is called"):
        NETWORK.grid("d")
