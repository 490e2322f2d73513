"""Every private name of torch that this package uses, why, and what happens if torch removes it.

No other module of the package touches a private name of torch (`tests/utils/test_torch_private.py` reads them all).
Overrides cannot live here: `nn/network.py` and `nn/network_quantizers.py` override `nn.Module._apply`, through which
`Module.to` and its relatives move tensors, and `nn/network.py` overrides `_save_to_state_dict` and
`_load_from_state_dict`, through which an attachment joins a state_dict. torch has no public form of these. If one went,
an attached network would leave its quantizers behind, and `tests/nn/test_network.py` would fail.
"""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

# What the nodes of an exported graph call. Gone: importing bayesbits fails here.
from torch._ops import HigherOrderOperator, OpOverload

# Shapes of a graph's nodes without computing, for nodes that deployment inserts. Gone: importing bayesbits fails here.
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

# What all batch norms are, and all convolutions; the public classes are one for each number of dimensions. Gone:
# importing bayesbits fails here.
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.modules.conv import _ConvTransposeNd as ConvTransposeNd

# Nested inputs and outputs, in the same terms as torch.export's. Gone: importing bayesbits fails here.
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

__all__ = [
    "BatchNorm",
    "ConvNd",
    "ConvTransposeNd",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "check_input_dim",
    "compiler_failed",
    "conv_forward",
    "find_cpp_compiler",
    "ignore_autocast",
    "in_backward",
    "is_compiled",
    "keep_onnx_translations",
    "make_functional",
    "mark_dynamic",
    "operation_arguments",
    "operation_name",
    "output_padding",
    "remove_forward_pre_hooks",
    "size_guards",
    "tensor_version",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
    "with_recurrent_weights",
]


def in_backward() -> bool:
    """Whether autograd's backward is running in this thread: a forward pass inside it is checkpointing's second one.

    Gone: raises where a network with attached quantizers runs; torch has no public question for it.
    """
    return torch._C._current_graph_task_id() != -1


def is_compiled(module: nn.Module) -> bool:
    """Whether this is what `torch.compile(model)` returned; asked without importing the compiler, which takes a second.

    Gone: the answer is always no, and attaching to such a module fails later.
    """
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(module, getattr(compiler, "OptimizedModule", ()))


@contextmanager
def ignore_autocast() -> Iterator[None]:
    """Autocast has no effect on this thread inside the block, even where torch.export enters it again.

    torch.export puts an autocast region into a graph of its own, and making that functional loses the names of the
    modules in it. torch.autocast tells the outermost mode of the class below that it was entered. Gone: a network with
    such regions is read by a run with hooks.
    """
    # Imported here, as it imports sympy: half a second.
    from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode

    class AutocastIgnored(PreDispatchTorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.amp._enter_autocast:  # type: ignore[attr-defined]
                torch.set_autocast_enabled(args[0], False)  # torch.autocast itself restores it when it is left
                return None
            return None if func is torch.amp._exit_autocast else func(*args, **(kwargs or {}))  # type: ignore[attr-defined]

    with ExitStack() as stack:
        accelerator = torch.accelerator.current_accelerator()
        for device in ("cpu", *([] if accelerator is None else [accelerator.type])):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(AutocastIgnored(None))  # type: ignore[arg-type]
        yield


def make_functional(exported: ExportedProgram) -> ExportedProgram:
    """The program in which no operation changes a tensor in place: `exported.run_decompositions({})`, in less time.

    Composite operations such as `linear` stay whole. torch says so to all 500 of them, one by one and for every kind of
    device, which takes most of the time for a small network; here only those of the program are told. Gone: exports
    take longer.
    """
    from torch._export import utils
    from torch.export import exported_program as implementation

    private = {
        "_decompose_exported_program": implementation,
        "_disable_prexisiting_fake_mode": implementation,
        "_is_preservable_cia_op": utils,
        "_special_op_to_preserve_cia": utils,
    }
    found: list[Any] = [getattr(module, name, None) for name, module in private.items()]
    decompose, outside_of_fake_modes, can_stay_whole, stay_whole = found
    options: dict[str, Any] = {
        "python_decomp_table": {},
        "joint_loss_index": None,
        "decompose_custom_triton_ops": False,
    }
    if None in found or list(inspect.signature(decompose).parameters) != ["ep", "cia_to_decomp", *options]:
        result: ExportedProgram = exported.run_decompositions({})
        return result
    graphs = (part.graph for part in exported.graph_module.modules() if isinstance(part, fx.GraphModule))
    operations = {node.target for graph in graphs for node in graph.nodes if isinstance(node.target, OpOverload)}
    whole = {operation: stay_whole for operation in operations if can_stay_whole(operation)}
    functional: ExportedProgram = outside_of_fake_modes(decompose)(exported, cia_to_decomp=whole, **options)
    return functional


_onnx_translations: dict[tuple[Any, ...], Any] = {}


@contextmanager
def keep_onnx_translations() -> Iterator[None]:
    """Inside the block torch.onnx.export has its table of translations from the first export of this process.

    torch builds the table anew for every export, from the source of 500 functions: half of the time that a small
    network takes. Every export gets a copy, to which it may add. Gone: exports take longer.
    """
    from torch.onnx._internal.exporter import _registration

    registry: Any = getattr(_registration, "ONNXRegistry", None)
    original = getattr(registry, "__dict__", {}).get("from_torchlib")
    if original is None:
        yield
        return
    build = registry.from_torchlib

    def kept(*args: Any, **kwargs: Any) -> Any:
        key = (args, tuple(kwargs.items()))
        if key not in _onnx_translations:
            _onnx_translations[key] = build(*args, **kwargs)
        table = copy.copy(_onnx_translations[key])
        table.functions = {target: list(functions) for target, functions in table.functions.items()}
        return table

    registry.from_torchlib = staticmethod(kept)
    try:
        yield
    finally:
        registry.from_torchlib = original


def find_cpp_compiler() -> str:
    """The C++ compiler that torch.compile would use. Raises where there is none, or where torch has no such question.

    Gone: quantizers run uncompiled on the CPU, and a warning says so.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler

    return str(get_cpp_compiler())


def mark_dynamic(x: Tensor, dims: list[int]) -> None:
    """Tell the compiler that these sizes change, where it has not found out already that they do not.

    `torch._dynamo.mark_dynamic` fails where a size turns out to be fixed. Gone: each new size compiles again.
    """
    mark = getattr(torch._dynamo, "maybe_mark_dynamic", None)
    if mark is not None:
        mark(x, dims)


def compiler_failed(error: BaseException) -> bool:
    """Whether this error says that the compiler behind torch.compile failed, and not the code that was compiled.

    Gone: the error is passed on.
    """
    failed = getattr(torch._dynamo.exc, "BackendCompilerFailed", None)
    return failed is not None and isinstance(error, failed)


def conv_forward(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What a convolution computes with this weight and bias, its padding mode included, which `F.conv2d` does not have.

    Gone: raises where a network with attached convolutions runs.
    """
    result: Tensor = layer._conv_forward(x, weight, bias)
    return result


def output_padding(layer: Any, x: Tensor, output_size: list[int] | None) -> list[int]:
    """The output padding by which a transposed convolution reaches `output_size`.

    Gone: raises where a network with attached transposed convolutions runs.
    """
    dims = layer.weight.dim() - 2
    padding: list[int] = layer._output_padding(
        x, output_size, layer.stride, layer.padding, layer.kernel_size, dims, layer.dilation
    )
    return padding


def with_recurrent_weights(module: Any, kind: type[nn.Module], weights: Mapping[str, Tensor]) -> Any:
    """nn.LSTM, nn.GRU or nn.RNN as an object of the class `kind` that computes with other tensors in place of these
    parameters, and shares everything else with the module, which stays as it is.

    Gone: raises where a network with attached recurrent layers runs.
    """
    made: Any = object.__new__(kind)
    made.__dict__.update(module.__dict__, _parameters={**module._parameters, **weights})
    flat = [made._parameters[name] for name in module._flat_weights_names]
    # The module's forward reads its parameters again where these are not those of its list.
    made.__dict__.update(_flat_weights=flat, _flat_weight_refs=[weakref.ref(weight) for weight in flat])
    return made


def check_input_dim(norm: Any, x: Tensor) -> None:
    """Raise where a batch norm does not take inputs of so many dimensions, with torch's own message.

    Gone: raises where a network with attached batch norms runs.
    """
    norm._check_input_dim(x)


def size_guards(x: Tensor) -> list[tuple[Any, str, int, str]]:
    """What torch.export has found out about symbolic sizes so far: expressions, each with file, line and function.

    x is a tensor of the traced network. Gone: the answer is nothing; sizes of images may take long to export, and a
    fixed size is noted without the place in the code that fixes it.
    """
    environment = getattr(getattr(x, "fake_mode", None), "shape_env", None)
    found = []
    for guard in getattr(environment, "guards", ()):
        place = getattr(getattr(guard, "sloc", None), "framework_loc", None)
        file, line, function = (getattr(place, name, "") for name in ("filename", "lineno", "name"))
        found.append((guard.expr, str(file), int(line or 0), str(function)))
    return found


def operation_name(operation: OpOverload) -> str:
    """The name of an operation without its overload, such as "conv2d". Gone: reading a network raises."""
    return str(operation._schema.name).removeprefix("aten::")


def operation_arguments(operation: OpOverload) -> list[Any]:
    """The arguments that an operation takes: their names, types and defaults. Gone: deploying a network raises."""
    return list(operation._schema.arguments)


def tensor_version(x: Tensor) -> int:
    """How often a tensor was changed in place. Gone: calibrating and measuring sensitivities raise."""
    return int(x._version)


def remove_forward_pre_hooks(module: nn.Module, kind: type) -> None:
    """Remove the forward pre-hooks of this class; a copy of the module has such hooks, but no handles to remove them.

    Gone: raises where a network is detached.
    """
    hooks = module._forward_pre_hooks
    for identifier in [identifier for identifier, hook in hooks.items() if isinstance(hook, kind)]:
        del hooks[identifier]
