"""The errors of the deployed network are those of the simulation, layer by layer, and follow the integers."""

import math

import pytest
import torch

import bayesbits as bb
from bayesbits.compression.statistics import measure_statistics
from bayesbits.deploy.layer_errors import measure_deployed_errors
from tests.deploy.calls import FixedBatch, deploy_uniformly
from tests.deploy.networks import deployed
from tests.graph.networks import OWN

CLOSE = 0.3  # dB; samples of outputs with removed channels hold other values


@pytest.mark.parametrize("name", ["lenet5", *OWN])
def test_they_are_those_of_the_simulation(name):
    compressor, small, inputs = deployed(name)
    simulated = measure_statistics(compressor, inputs)
    errors, output = measure_deployed_errors(compressor, small, inputs)
    assert [one.name for one in errors] == [one.name for one in simulated.layers]
    assert output == pytest.approx(simulated.output, abs=CLOSE)
    for found, expected in zip(errors, simulated.layers, strict=True):
        assert found.alone == pytest.approx(expected.alone, abs=CLOSE), found.name
        assert found.together == pytest.approx(expected.together, abs=CLOSE), found.name


def test_the_errors_are_of_one_layer_alone_and_of_all_up_to_it():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    inputs = torch.randn(8, 6)
    hidden, exact = model[:2](inputs).detach(), model(inputs).detach()
    compressor = bb.attach(model, inputs, bb.Spec(bits=(4,), prune=False))
    compressor.calibrate([inputs])
    compressor.fix()
    small = bb.deploy(compressor)
    (first, second), output = measure_deployed_errors(compressor, small, inputs)

    def ratio(rounded):
        return 10 * math.log10(exact.square().sum().item() / (rounded - exact).square().sum().item())

    assert first.alone == pytest.approx(first.together)
    assert second.alone == pytest.approx(ratio(compressor.model[2](hidden).detach()), abs=1e-2)
    assert second.together == pytest.approx(ratio(small(inputs)), abs=1e-2)
    assert output == pytest.approx(second.together)


def test_a_wrong_code_is_seen_in_its_layer_and_behind_it():
    compressor, small, inputs = deployed("lenet5")
    before, _ = measure_deployed_errors(compressor, small, inputs)
    name = before[1].name
    codes = small.integer.tensors[f"{name}.codes"]
    kept = codes.clone()
    try:
        codes[: len(codes) // 2] = 0
        after, _ = measure_deployed_errors(compressor, small, inputs)
    finally:
        codes.copy_(kept)
    assert after[0] == before[0]
    assert after[1].alone < before[1].alone - 3
    assert after[2].alone == before[2].alone  # its own codes are right, what it reads is not
    assert after[2].together < before[2].together


def test_a_batch_that_the_code_fixes_is_taken_in_parts():
    example = torch.randn(3, 2, 4)
    compressor, small = deploy_uniformly(FixedBatch(), example)
    errors, output = measure_deployed_errors(compressor, small, torch.cat([example, example]))
    assert errors
    assert output is not None


def test_the_network_stays_as_it_is():
    compressor, small, inputs = deployed("lenet5")
    before = compressor.model(inputs)
    measure_deployed_errors(compressor, small, inputs)
    assert torch.equal(compressor.model(inputs), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in small.modules())
