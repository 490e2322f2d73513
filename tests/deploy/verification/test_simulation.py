"""The trained network with replaced outputs of its quantizers, in float32 and in float64."""

import numpy as np
import torch

import bayesbits as bb
from bayesbits.deploy.verification.derived_constants import derive_grids, derive_layers
from bayesbits.deploy.verification.inputs import Batch
from bayesbits.deploy.verification.simulation import (
    BEYOND_ALL_RANGES,
    Float64Simulation,
    QuantizerCall,
    Simulation,
    fixed_copy,
)

X = torch.tensor([[0.1, 0.9], [0.3, 0.7], [1.0, 0.0]])
BATCH = Batch((X,), {}, 3)


def exact(compressor: bb.Compressor) -> Float64Simulation:
    plan = compressor.plan()
    fixed = fixed_copy(compressor, plan)
    return Float64Simulation(fixed, derive_layers(fixed, plan, derive_grids(fixed, plan)), {})


def test_without_replacements_it_computes_what_the_network_does(linear: bb.Compressor) -> None:
    calls: dict[QuantizerCall, torch.Tensor] = {}
    simulation = Simulation(fixed_copy(linear, linear.plan()))
    (output,) = simulation.run(BATCH, lambda call, x: calls.update({call: x}))
    assert torch.equal(output, linear.model(X))
    assert list(calls) == [QuantizerCall("0.input", "0", 0)]
    assert torch.equal(calls[QuantizerCall("0.input", "0", 0)], X)
    assert simulation.returned is not None
    assert simulation.returned.kind == "tensor"


def test_a_replaced_output_of_a_quantizer_is_read_by_the_layer(linear: bb.Compressor) -> None:
    (output,) = Simulation(fixed_copy(linear, linear.plan())).run(BATCH, lambda call, x: torch.zeros_like(x))
    bias = torch.tensor([191.0, -574.0]) * 2 / 15 / 255
    assert torch.allclose(output, bias.expand(3, 2))


def test_in_float64_layers_have_the_derived_constants(linear: bb.Compressor) -> None:
    (output,) = exact(linear).run(BATCH, lambda call, x: x)
    step, input_step = float(np.float32(2) / np.float32(15)), float(np.float32(1) / np.float32(255))
    bias_step = input_step * step
    expected = X.double().numpy() @ (np.array([[4, -7], [2, 6]]) * step).T + np.array([191, -574]) * bias_step
    assert output.dtype == torch.float64
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-15)


def test_layers_emit_one_value_and_then_their_own_again(linear: bb.Compressor) -> None:
    simulation = exact(linear)
    before = simulation.run(BATCH, lambda call, x: x)[0]
    with simulation.emitting(["0"], -BEYOND_ALL_RANGES):
        assert torch.equal(simulation.run(BATCH, lambda call, x: x)[0], torch.full((3, 2), -1e30, dtype=torch.float64))
    assert torch.equal(simulation.run(BATCH, lambda call, x: x)[0], before)


def test_a_copy_leaves_the_network_as_it_is(linear: bb.Compressor) -> None:
    linear.model.train()
    copied = fixed_copy(linear, linear.plan())
    assert not copied.model.training
    assert linear.model.training
    assert copied.model is not linear.model
