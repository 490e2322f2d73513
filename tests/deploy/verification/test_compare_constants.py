"""Constants of simulation and deployed network that are not the derived ones are named."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.verification.compare_constants import (
    _check_close,
    check_deployed_constants,
    check_simulated_constants,
)
from bayesbits.deploy.verification.derived_constants import LayerConstants, derive_grids, derive_layers
from bayesbits.deploy.verification.result import ConstantCounts
from bayesbits.records.integer_network import Grid


@pytest.fixture
def derived(linear: bb.Compressor) -> tuple[dict[str, LayerConstants], dict[str, Grid]]:
    grids = derive_grids(linear, linear.plan())
    return derive_layers(linear, linear.plan(), grids), grids


def check(compressor: bb.Compressor, constants: dict[str, LayerConstants], grids: dict[str, Grid]) -> ConstantCounts:
    return check_deployed_constants(bb.deploy(compressor), compressor, compressor.plan(), constants, grids)


def test_equal_constants_are_counted(linear, derived):
    check_simulated_constants(linear, derived[0])
    assert check(linear, *derived) == ConstantCounts(weights=4, biases=2, grids=1)


def test_numbers_below_the_smallest_normal_one_may_be_lost():
    zero = torch.zeros(1, dtype=torch.float64)
    _check_close("0", "bias", zero, zero + 1e-39, torch.zeros(()))
    with pytest.raises(bb.VerificationError, match="1 of 1 numbers of the bias"):
        _check_close("0", "bias", zero, zero + 1e-37, torch.zeros(()))


@pytest.mark.parametrize("field", ["weight", "bias"])
def test_the_simulation_has_the_derived_constants_up_to_rounding(field, linear, derived):
    right = derived[0]["0"]
    for factor, equal in ((1 + 2.0**-22, True), (1 + 1e-5, False)):
        constants = {"0": replace(right, **{field: getattr(right, field) * factor})}
        if equal:
            check_simulated_constants(linear, constants)
        else:
            with pytest.raises(bb.VerificationError, match=rf"^0: \d of \d numbers of the {field} .* are not those"):
                check_simulated_constants(linear, constants)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: {"codes": it.codes + np.eye(2, dtype=np.int64)}, "code of the weight differs in 2 of 4 values"),
        (lambda it: {"steps": np.nextafter(it.steps, np.float32(1))}, "step of the weight differs in 1 of 1 values"),
        (lambda it: {"bias_codes": it.bias_codes + np.array([0, 1])}, "bias differs in 1 of 2 values; the first, at"),
        (lambda it: {"bits": 2}, "bits is 4 in the deployed network, and plan and weights give 2"),
        (lambda it: {"input_bits": 16}, "arithmetic is integer in the deployed network, and plan and weights give flo"),
    ],
)
def test_the_deployed_network_has_exactly_the_derived_constants(change, message, linear, derived):
    constants = {"0": replace(derived[0]["0"], **change(derived[0]["0"]))}
    with pytest.raises(bb.VerificationError, match=message):
        check(linear, constants, derived[1])


def test_grids_and_layers_that_the_compressor_does_not_have(linear, derived):
    with pytest.raises(bb.VerificationError, match=r"^0\.input: the network of this compressor does not quantize it"):
        check(linear, derived[0], {})
    with pytest.raises(bb.VerificationError, match=r"^0: the network of this compressor has no such layer"):
        check(linear, {}, derived[1])
    wrong = {"0.input": replace(derived[1]["0.input"], high=254)}
    with pytest.raises(bb.VerificationError, match=r"^0\.input: high is 255 in the deployed network, .* give 254"):
        check(linear, derived[0], wrong)


def test_an_instance_norm_that_shifts_a_dropped_channel_is_named():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    nn.init.constant_(model[1].bias, 0.5)
    x = torch.randn(2, 3, 4, 4)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    compressor.fix(bb.Plan(bb.Plan.uniform(compressor.topology, 4, 8).bits, {"0": (0, 1, 3)}))
    small, plan = bb.deploy(compressor, channel_multiple=4), compressor.plan()
    grids = derive_grids(compressor, plan)
    constants = derive_layers(compressor, plan, grids)
    check_deployed_constants(small, compressor, plan, constants, grids)
    small.program.get_parameter("floats./1/bias")[2] = 0.5
    with pytest.raises(bb.VerificationError, match=r"^1\.bias: value differs in 1 of 4 values"):
        check_deployed_constants(small, compressor, plan, constants, grids)


def test_a_module_that_does_not_hold_the_record_is_named(linear, derived):
    small = bb.deploy(linear)
    small.program.get_submodule("layers./0").scale *= 1 + 2.0**-23
    with pytest.raises(bb.VerificationError, match=r"^0: scale differs in 1 of 1 values"):
        check_deployed_constants(small, linear, linear.plan(), *derived)
