"""Operands are quantized inside their module, before any hook; an observer sees them before that."""

import copy
import io

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

import bayesbits as bb
from bayesbits.nn.batch_norm import AttachedBatchNorm
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.quantized_output import QuantizedOutput, observe_output
from tests.graph.networks import transformer
from tests.nn.captured import Block, Captured


def made(network: type[nn.Module] = Captured, bits: int = 8) -> tuple[nn.Module, bb.Compressor, Tensor]:
    torch.manual_seed(0)
    model, x = network(), torch.randn(4, 3, 6, 6)
    model(x)
    compressor = bb.attach(model.eval(), x, bb.Spec(residual_bits=bits))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8, residual_bits=bits))
    return model, compressor, x


@pytest.mark.parametrize("bits", [3, 8])
def test_a_hook_from_before_attaching_sees_what_is_deployed(bits):
    model, compressor, x = made(bits=bits)
    simulated = model(x)
    assert all(0 < seen.unique().numel() <= 2**bits for seen in simulated[1:])
    for ours, deployed in zip(simulated, bb.deploy(compressor)(x), strict=True):
        scale = ours.abs().max()
        near = (ours - deployed).abs() < 1e-5 * scale
        assert near.float().mean() > 0.99  # all but ties


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_hidden_states_that_a_library_captures_are_the_deployed_ones(name):
    torch.manual_seed(0)
    model, inputs = transformer(name)
    model.eval().config.output_hidden_states = True
    compressor = bb.attach(model, inputs, bb.Spec(residual_bits=4))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8, residual_bits=4))
    with torch.no_grad():
        simulated, deployed = model(**inputs).hidden_states, tree_leaves(bb.deploy(compressor)(**inputs))
    assert len(simulated) > 1
    for ours in simulated:
        errors = [(ours - theirs).norm() / ours.norm() for theirs in deployed if theirs.shape == ours.shape]
        assert min(errors).item() < 1e-3


def test_quantizing_an_output_nests_with_what_else_is_attached():
    model, compressor, x = made()
    norm, way = model.block.norm, model.block.way
    assert isinstance(norm, QuantizedOutput)
    assert isinstance(norm, AttachedBatchNorm)
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(way, QuantizedOutput)
    assert isinstance(way, AttachedLayer)
    file = io.BytesIO()
    whole = Holder()
    compressor = bb.attach(whole, x)
    compressor.calibrate([x])
    torch.save(whole, file)
    file.seek(0)
    expected = whole.eval()(x)
    for other in (copy.deepcopy(whole), torch.load(file, weights_only=False)):
        assert torch.equal(other.eval()(x), expected)
        own = bb.Compressor(other).attachment.quantizers["block.way.output"]
        assert other.block.way.bayesbits_output.quantizer is own
        bb.Compressor(other).detach()
        assert {type(module) for module in other.block.children()} == {nn.Conv2d, nn.BatchNorm2d, nn.ReLU}
        assert vars(other.block.way).keys() == vars(nn.Conv2d(4, 4, 1)).keys()


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 4, 1), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.stem(x))


def test_a_forward_that_was_set_on_the_module_itself_is_kept_and_given_back():
    model, x = Holder(), torch.randn(4, 3, 6, 6)

    def own(x: Tensor) -> Tensor:
        return 2 * nn.BatchNorm2d.forward(model.block.norm, x)

    model.block.norm.forward = own  # type: ignore[method-assign]
    compressor = bb.attach(model.eval(), x, bb.Spec(rules={"block.norm.output": {"bits": 2}}))
    compressor.calibrate([x])
    seen: list[Tensor] = []
    model.block.norm.register_forward_hook(lambda _, inputs, output: seen.append(output))
    model(x)
    assert seen[0].unique().numel() <= 4
    compressor.detach()
    assert model.block.norm.forward is own


def test_an_observer_sees_what_a_module_computes_before_it_is_quantized():
    model, _, x = made(bits=2)
    seen: list[tuple[Tensor, Tensor]] = []
    handles = [
        handle
        for module in (model.block.way, model.block.conv)
        for handle in observe_output(module, lambda arguments, _, output: seen.append((arguments[0], output)))
    ]
    captured = model(x)[2]
    (conv_in, conv_out), (way_in, way_out) = seen
    assert torch.equal(conv_in, way_in)
    assert way_out.unique().numel() > 4 >= captured.unique().numel()
    assert torch.equal(conv_out, model.block.conv(conv_in))
    for handle in handles:
        handle.remove()
    model(x)
    assert len(seen) == 3


@pytest.mark.check
def test_a_compiled_network_is_one_graph_with_hooks_and_operands_too():
    model, x = Captured(), torch.randn(4, 3, 6, 6)
    bb.attach(model, x, bb.Spec(bits=(2, 8))).calibrate([x])
    torch._dynamo.reset()
    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, _: list[Tensor]) -> fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, fullgraph=True, backend=backend)  # a break is an error
    for training in (True, False):
        model.train(training)
        compiled(x)
    assert len(graphs) == 2
