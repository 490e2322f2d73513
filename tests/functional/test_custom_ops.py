"""What compilers and exporters get to see of a network with quantizers attached.

A compiler for the GPU sees each quantizer as one operation, forward and backward. What dynamo chooses for a CUDA device
is tested with fake tensors, which need no GPU but have no autograd. The graphs of both directions are tested on a GPU
where there is one; elsewhere the kernel of the CPU stands in.
"""

from collections import Counter

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode

import bayesbits as bb
from bayesbits.functional import custom_ops, gated_quantize, implementation, operation
from bayesbits.nn import GatedQuantizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ("gated_quantize", "gated_quantize_asymmetric")
FORWARD, BACKWARD = ([f"bayesbits.{kind}{end}.default" for kind in KINDS] for end in ("", "_backward"))
ROUNDING = "round"  # what the definition would show itself by; gates and ranges are clamped, but nothing else rounds


class Residual(nn.Module):
    """An addition whose operands are quantized, a layer of each kind, and a batch norm or none."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.relu = nn.Conv2d(3, 4, 3, padding=1), norm, nn.ReLU()
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(x)))
        result: Tensor = self.last((x + self.second(x)).mean((2, 3)))
        return result


def attached(device: str, norm: nn.Module) -> tuple[bb.Compressor, Tensor]:
    torch.manual_seed(0)
    model, x = Residual(norm).to(device), torch.randn(4, 3, 6, 6, device=device)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    model.train()
    return compressor, x


def count(module: fx.GraphModule) -> Counter[str]:
    """How often a graph and its subgraphs call each operation; torch's own by their plain names."""
    found: Counter[str] = Counter()
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if node.op in ("call_function", "call_method"):
                name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
                found[str(node.target) if "bayesbits" in str(node.target) else name] += 1
    return found


def total(found: Counter[str], names: list[str]) -> int:
    """How often any of these operations is called; the network below has ranges of all kinds."""
    assert all(found[name] for name in names)
    return sum(found[name] for name in names)


def test_dynamo_sees_one_operation_for_each_quantizer_of_a_network_on_a_cuda_device():
    compressor, x = attached("cpu", nn.Identity())  # torch asks a real device about batch norm
    seen = []

    def backend(module: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
        seen.append(count(module))
        return module

    with FakeTensorMode(), torch.no_grad():  # autograd would look for the device
        for module in compressor.model.modules():
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        held[name] = torch.empty_strided(
                            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda"
                        )  # fmt: skip
        torch.compile(compressor.model, backend=backend, fullgraph=True)(torch.empty(x.shape, device="cuda"))
    assert len(seen) == 1
    assert total(seen[0], FORWARD) == len(compressor.attachment.quantizers) == 8
    assert seen[0][ROUNDING] == 0


def test_both_directions_have_one_operation_for_each_quantizer(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(operation, "has_kernel", lambda x, rows: True)
    compressor, x = attached(DEVICE, nn.BatchNorm2d(4))
    seen = {}

    def counting(direction):
        def compiler(module, inputs):
            seen[direction] = count(module)
            return make_boxed_func(module)

        return compiler

    backend = aot_autograd(
        fw_compiler=counting("forward"), bw_compiler=counting("backward"),
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    torch.compile(compressor.model, backend=backend, fullgraph=True)(x).sum().backward()
    quantizers = compressor.attachment.quantizers
    assert total(seen["forward"], FORWARD) == len(quantizers)
    assert total(seen["backward"], BACKWARD) == len(quantizers) - 1  # the range of the input does not learn
    # What layers read is quantized again instead of kept, but for the input; additions need no operand again.
    assert sum(seen["backward"][name] for name in FORWARD) == len(compressor.topology.layers) - 1
    assert seen["forward"][ROUNDING] == seen["backward"][ROUNDING] == 0


def test_an_exporter_sees_the_definition(monkeypatch):
    monkeypatch.setattr(operation, "has_kernel", lambda x, rows: True)
    quantizer, x = GatedQuantizer(signed=True).eval(), torch.randn(8, 16)
    program = torch.export.export(quantizer, (x,), strict=False)
    assert not any("bayesbits" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), quantizer(x))


def test_the_operation_writes_another_dtype_with_the_same_gradients():
    torch.manual_seed(0)
    results = {}
    for dtype in (None, torch.bfloat16):
        x = torch.linspace(-2, 2, 60).reshape(3, 20).requires_grad_()
        beta, gates = torch.tensor([0.5, 1.0, 1.5], requires_grad=True), torch.tensor([1, 0.9, 0.7], requires_grad=True)
        with implementation("opaque"):
            y = gated_quantize(x, beta, gates, signed=True, bits=(2, 4, 8), dtype=dtype)
        y.to(torch.bfloat16).backward(torch.linspace(-1, 1, 60).reshape(3, 20).to(torch.bfloat16))
        results[dtype] = y, x.grad, beta.grad, gates.grad
    plain, *gradients = results[None]
    narrow, *narrow_gradients = results[torch.bfloat16]
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, plain.to(torch.bfloat16))
    for one, other in zip(gradients, narrow_gradients, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other)


def test_a_compiler_computes_gate_values_once_and_returns_them_once():
    compressor, x = attached("cpu", nn.BatchNorm2d(4))
    seen = []

    def backend(module: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
        seen.append(module)
        return module

    torch.compile(compressor.model, backend=backend, fullgraph=True)(x)
    (results,) = next(node for node in seen[0].graph.nodes if node.op == "output").args
    assert len(results) == 2  # what the network returns, and the gate values of this pass, for checkpointing
    sigmoids = [node for node in seen[0].graph.nodes if getattr(node.target, "__name__", "") == "sigmoid"]
    assert len(sigmoids) == 1
    reader = sigmoids[0]
    while "copy" not in str(reader.target):  # up to there every value has one reader: nothing large is multiplied yet
        (reader,) = reader.users


def test_a_snapshot_is_a_copy_where_a_compiler_looks_and_the_buffer_itself_elsewhere():
    def changed(buffer: torch.Tensor) -> torch.Tensor:
        before = custom_ops.snapshot(buffer)
        buffer.add_(1)
        return before * 1

    buffer = torch.zeros(3)
    assert custom_ops.snapshot(buffer) is buffer
    assert torch.equal(torch.compile(changed, backend="aot_eager", fullgraph=True)(buffer), torch.zeros(3))
    assert torch.equal(buffer, torch.ones(3))


def test_the_operations_of_asymmetric_ranges_say_what_they_return():
    x, ends, gates = torch.linspace(-1, 1, 60).reshape(3, 20), (torch.tensor(-0.3), torch.tensor(0.7)), torch.ones(3)
    torch.library.opcheck(custom_ops.quantize_asymmetric, (x, *ends, gates, [2, 4, 8], torch.bfloat16))
    torch.library.opcheck(custom_ops.gradients_asymmetric, (x, x, *ends, gates, [2, 4, 8]))


def test_a_network_with_asymmetric_ranges_compiles_whole_and_learns_both_ends():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 2)), torch.randn(40, 6)
    compressor = bb.attach(model, x, bb.Spec(bits=(2, 4), prune=False, gates="hard_sigmoid"))
    compressor.calibrate([0.5 * x])
    ranges = {name: p for name, p in compressor.attachment.learnable()["ranges"].items() if "input" in name}
    assert sorted(ranges) == ["2.input", "the lower end of 2.input"]
    found = {}
    for name, network in {
        "eager": model,
        "compiled": torch.compile(model, fullgraph=True, backend="aot_eager"),
    }.items():
        model.zero_grad()
        y = network(x)
        y.square().sum().backward()
        found[name] = [y.detach(), *(parameter.grad.clone() for parameter in ranges.values())]
    torch.testing.assert_close(*found.values(), rtol=1e-4, atol=1e-5)
    assert all(gradient != 0 for gradient in found["eager"][1:])
