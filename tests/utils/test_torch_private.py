"""Private names of torch: one file names them all, and what it does without those that may go."""

import ast
import copy
import re
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesbits
from bayesbits.utils import torch_private

SOURCE = Path(bayesbits.__file__).parent

# Private attributes of tensors, modules and operations, which could stand behind any expression.
ATTRIBUTES = {
    "_backward_hooks", "_buffers", "_check_input_dim", "_conv_forward", "_forward_hooks", "_forward_pre_hooks",
    "_metadata", "_output_padding", "_parameters", "_schema", "_version",
}  # fmt: skip


def private_names(source: str) -> set[str]:
    """What a module's source imports or reads of torch that begins with an underscore."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
    private = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)} & ATTRIBUTES
    parts = {name: name.split(".") for name in found if re.fullmatch(r"(torch|F|nn)(\.\w+)+", name)}
    return {
        name for name, path in parts.items() if any(p.startswith("_") and not p.startswith("__") for p in path)
    } | private


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_other_file_touches_a_private_name_of_torch(path):
    if path.name != "torch_private.py":
        assert private_names(path.read_text()) == set()


def test_private_names_are_found_however_they_are_written():
    source = "import torch._ops\nfrom torch.utils._pytree import tree_map\ntorch._C.f()\nfrom torch.nn import Linear\n"
    source += "x[0]._version"
    found = {"torch._ops", "torch.utils._pytree.tree_map", "torch._C.f", "torch._C", "_version"}
    assert private_names(source) == found


def test_backward_is_told_apart_from_forward():
    seen = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(torch_private.in_backward())
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch_private.in_backward())
            return grad

    Watched.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [False, True]


def test_what_may_go_is_done_without(monkeypatch):
    error = torch._dynamo.exc.BackendCompilerFailed(lambda: None, ValueError("x"), None)
    assert torch_private.compiler_failed(error)
    assert not torch_private.compiler_failed(ValueError("x"))
    monkeypatch.delattr(torch._dynamo.exc, "BackendCompilerFailed")
    assert not torch_private.compiler_failed(error)
    monkeypatch.delattr(torch._dynamo, "maybe_mark_dynamic")
    torch_private.mark_dynamic(torch.ones(2), [0])


def test_a_compiled_module_is_recognized():
    model = torch.nn.Linear(2, 2)
    assert not torch_private.is_compiled(model)
    assert torch_private.is_compiled(torch.compile(model))


def test_autocast_is_ignored_where_it_surrounds_the_block():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch_private.ignore_autocast():
            assert not torch.is_autocast_enabled("cpu")
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert not torch.is_autocast_enabled("cpu")
            assert torch.nn.functional.linear(torch.ones(1, 2), torch.ones(1, 2)).dtype is torch.float32
        assert torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")


class InPlace(torch.nn.Module):
    """Composite operations that stay whole, some that do not, changes in place, and a branch in a graph of its own."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding="same"), torch.nn.BatchNorm2d(4)
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        x = torch.nn.functional.relu6(self.norm(self.conv(x)), inplace=True).mul_(2).clip_(0, 1)
        x = torch.cond(x.sum() > 0, lambda x: torch.nn.functional.layer_norm(x, (8,)), lambda x: x * 1, (x,))
        x = x.flatten(2).transpose(1, 2)
        return torch.einsum("bij,bij->bi", self.attention(x, x, x)[0], x)


@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec")
@torch.no_grad()
def test_a_functional_program_is_that_of_torch_and_takes_less(monkeypatch):
    exported = torch.export.export(InPlace().eval(), (torch.randn(2, 3, 8, 8),))

    def listed(program):
        nodes = [
            (node.op, str(node.target), str(node.args), str(node.meta.get("nn_module_stack")))
            for part in program.graph_module.modules()
            for node in part.graph.nodes
        ]
        return nodes, program.graph_signature

    expected = listed(exported.run_decompositions({}))
    with monkeypatch.context() as patch:
        patch.setattr(torch.export.ExportedProgram, "run_decompositions", None)  # the slow way is not taken
        assert listed(torch_private.make_functional(exported)) == expected
    assert {"aten.linear.default", "aten.einsum.default"} <= {target for _, target, *_ in expected[0]}
    monkeypatch.delattr(torch.export.exported_program, "_disable_prexisiting_fake_mode")
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", lambda self, table: ("slow", table))
    assert torch_private.make_functional(exported) == ("slow", {})


def test_versions_count_changes_in_place():
    x = torch.zeros(2)
    before = torch_private.tensor_version(x)
    x + 1
    assert torch_private.tensor_version(x) == before
    x.add_(1)
    assert torch_private.tensor_version(x) == before + 1


def test_operations_tell_their_name_and_arguments():
    operation = torch.ops.aten.clamp.default
    assert torch_private.operation_name(operation) == "clamp"
    arguments = {argument.name: argument.default_value for argument in torch_private.operation_arguments(operation)}
    assert arguments == {"self": None, "min": None, "max": None}


def test_hooks_of_one_class_are_removed_and_others_stay():
    class Own:
        def __call__(self, module, inputs):
            return None

    model = torch.nn.Linear(2, 2)
    calls = []
    model.register_forward_pre_hook(lambda module, inputs: calls.append(1))
    model.register_forward_pre_hook(Own())
    torch_private.remove_forward_pre_hooks(model, Own)
    model(torch.zeros(1, 2))
    assert calls == [1]
    assert len(model._forward_pre_hooks) == 1


def test_torchs_table_of_onnx_translations_is_built_once_and_every_export_has_a_copy(monkeypatch):
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    built = []

    def build(opset_version):
        built.append(opset_version)
        return types.SimpleNamespace(functions={"relu": ["first"]})

    monkeypatch.setattr(ONNXRegistry, "from_torchlib", staticmethod(build))
    monkeypatch.setattr(torch_private, "_onnx_translations", {})
    original = ONNXRegistry.__dict__["from_torchlib"]
    with torch_private.keep_onnx_translations():
        ONNXRegistry().from_torchlib(opset_version=21).functions["relu"].append("added by an export")
    with torch_private.keep_onnx_translations():
        assert ONNXRegistry().from_torchlib(opset_version=21).functions == {"relu": ["first"]}
        ONNXRegistry.from_torchlib(opset_version=25)
    assert built == [21, 25]
    assert ONNXRegistry.__dict__["from_torchlib"] is original

    monkeypatch.delattr(ONNXRegistry, "from_torchlib")
    with torch_private.keep_onnx_translations():
        assert not hasattr(ONNXRegistry, "from_torchlib")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_computes_with_given_weights_and_stays_as_it_is(kind, monkeypatch):
    layer, other, x = kind(3, 4, bidirectional=True), kind(3, 4, bidirectional=True), torch.randn(2, 1, 3)
    before = layer(x)[0]
    names = ("weight_hh_l0", "weight_ih_l0_reverse")
    expected = copy.deepcopy(layer)
    expected.load_state_dict({**layer.state_dict(), **{name: other.state_dict()[name] for name in names}})
    given = torch_private.with_recurrent_weights(layer, kind, {name: 1 * getattr(other, name) for name in names})
    assert type(given) is kind
    monkeypatch.setattr(kind, "flatten_parameters", None)  # on a GPU it would write into weights that are no parameters
    assert torch.equal(given(x)[0], expected(x)[0])
    given(x)[0].sum().backward()
    assert other.weight_hh_l0.grad is not None
    assert layer.weight_hh_l0.grad is None
    assert torch.equal(layer(x)[0], before)
