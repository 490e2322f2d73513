"""Intermediate values of a deployed program, and the nodes that hold codes."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.verification.deployed_program import (
    CodesNode,
    layer_inputs,
    module_of,
    operand_codes,
    run_deployed,
    run_exact,
)
from tests.graph.networks import randomize

X = torch.rand(4, 3)


@pytest.fixture(scope="module")
def compressor() -> bb.Compressor:
    model = randomize(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), 0).eval()
    compressor = bb.attach(model, X, bb.Spec(prune=False))
    compressor.calibrate([X])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 4))
    return compressor


@pytest.fixture(scope="module")
def small(compressor: bb.Compressor) -> bb.DeployedNetwork:
    return bb.deploy(compressor)


def node(small: bb.DeployedNetwork, group: str, name: str) -> str:
    return next(one.name for one in small.program.graph.nodes if module_of(one) == (group, name))


def test_the_inputs_of_layers(compressor: bb.Compressor, small: bb.DeployedNetwork) -> None:
    assert layer_inputs(small, compressor.topology) == {
        "0": [CodesNode("0.input", node(small, "quantizers", "0.input"), False, False)],
        "2": [CodesNode("2.input", node(small, "layers", "0"), False, True)],
    }
    assert operand_codes(small) == {}


def test_values_of_nodes_and_outputs(small: bb.DeployedNetwork) -> None:
    codes, emitted = node(small, "quantizers", "0.input"), node(small, "layers", "0")
    values, (output,) = run_deployed(small, [X], {codes, emitted})
    assert torch.equal(output, small(X))
    assert set(values) == {codes, emitted}
    assert torch.equal(values[codes], torch.round(X / small.integer.grid("0.input").step).clamp(0, 255))
    assert values[emitted].min() >= 0
    assert values[emitted].max() <= 15


@pytest.mark.parametrize(("bound", "code"), [("low", 0), ("high", 15)])
def test_layers_emit_their_bounds(bound: str, code: int, small: bb.DeployedNetwork) -> None:
    emitted = node(small, "layers", "0")
    values, (output,) = run_deployed(small, [X], {emitted}, bound)
    assert torch.equal(values[emitted], torch.full((4, 5), float(code)))
    assert torch.equal(output, output[:1].expand(4, 2)), "the next layer reads the bound"


def test_exact_values_are_computed_from_the_known_ones(small: bb.DeployedNetwork) -> None:
    emitted, last = node(small, "layers", "0"), node(small, "layers", "2")
    known = {emitted: torch.full((4, 5), 3.0)}
    exact, (output,) = run_exact(small, [X], known, {emitted, last})
    assert not torch.equal(exact[emitted], known[emitted].double()), "its own value, not the known one"
    integer = small.integer
    sums = integer.codes("2").double().sum(1) * 3 + integer.bias("2").double()
    scale = (torch.tensor(integer.grid("2.input").step) * integer.steps("2")).double()
    assert exact[last].dtype == torch.float64
    assert torch.allclose(output, (sums * scale).expand(4, 2), rtol=1e-6)


def test_inputs_that_are_quantized_at_run_time_are_numbers() -> None:
    model = randomize(nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2)), 0).eval()
    compressor = bb.attach(model, X, bb.Spec.for_backend("onnxruntime", activations="dynamic"))
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    first, second = layer_inputs(small, compressor.topology).values()
    assert [codes.tensor for codes in (*first, *second)] == ["0.input", "2.input"]
    assert all(codes.dynamic for codes in (*first, *second))
    layer = node(small, "layers", "2")
    values, _ = run_deployed(small, [X], {layer, second[0].node})
    exact, _ = run_exact(small, [X], values, {layer})
    assert exact[layer].dtype == torch.float64
    torch.testing.assert_close(exact[layer].float(), values[layer], rtol=1e-5, atol=1e-6)
    assert not torch.equal(exact[layer], values[layer].double())
