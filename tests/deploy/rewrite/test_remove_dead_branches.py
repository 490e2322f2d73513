"""Branches of zeros are removed with their layers; zeros that something else reads stay."""

import bayesbits as bb
from tests.deploy.comparison import check_equal, mixed_plan
from tests.deploy.networks import SPEC, make


def test_a_branch_that_vanished_goes():
    model, inputs = make("residual")
    compressor = bb.attach(model.eval(), inputs, SPEC)
    compressor.calibrate([inputs])
    bits = mixed_plan(compressor.topology).bits | {"outer.weight": 0}
    compressor.fix(bb.Plan(bits, {"outer": ()}))
    small = bb.deploy(compressor)
    assert [layer.name for layer in small.integer.layers] == ["stem", "head"]
    check_equal(compressor, small, inputs)
