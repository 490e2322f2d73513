"""What a compiler for the GPU makes of quantizers that it sees as one operation; the CPU kernel stands in for it."""

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

import bayesbits as bb
from bayesbits.functional import opaque, operation
from bayesbits.nn import GatedQuantizer


@pytest.fixture(autouse=True)
def _one_operation(monkeypatch):
    monkeypatch.setattr(operation, "has_kernel", lambda x, rows: True)


def attached() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    bb.attach(model, x).calibrate([x])
    return model, x


def test_activations_are_quantized_again_in_the_backward_pass_and_weights_are_not():
    model, x = attached()
    found = {}

    def counting(name):
        def compiler(module, inputs):
            found[name] = sum("gated_quantize.default" in str(node.target) for node in module.graph.nodes)
            return make_boxed_func(module)

        return compiler

    backend = aot_autograd(
        fw_compiler=counting("forward"), bw_compiler=counting("backward"),
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    torch.compile(model, backend=backend)(x).sum().backward()
    assert found == {"forward": 4, "backward": 2}  # two weights and two activations; the activations


def test_an_exporter_sees_the_definition():
    quantizer, x = GatedQuantizer(signed=True).eval(), torch.randn(8, 16)
    program = torch.export.export(quantizer, (x,), strict=True)
    assert not any("bayesbits" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), quantizer(x))


def test_a_snapshot_is_a_copy_where_a_compiler_looks_and_the_buffer_itself_elsewhere():
    def changed(buffer: torch.Tensor) -> torch.Tensor:
        before = opaque.snapshot(buffer)
        buffer.add_(1)
        return before * 1

    buffer = torch.zeros(3)
    assert opaque.snapshot(buffer) is buffer
    assert torch.equal(torch.compile(changed, backend="aot_eager", fullgraph=True)(buffer), torch.zeros(3))
    assert torch.equal(buffer, torch.ones(3))
