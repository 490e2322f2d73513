"""`export_onnx`: a deployed network as an ONNX file; and the float network as one, to compare with.

The deployed network takes two steps: torch translates it with one custom node for each layer and quantizer, and
standard nodes replace those.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bayesbits.deploy.graph_json import refuse_custom_operations
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.custom_nodes import IR_VERSION, OPSET, export_with_custom_nodes, quiet_exporter, translate
from bayesbits.deploy.onnx.qdq_export import qdq_refusal, to_qdq_onnx
from bayesbits.deploy.onnx.runtime import check_loads
from bayesbits.deploy.signature import name_tensors, read_arguments, sort_keyword_inputs
from bayesbits.graph.dynamic_shapes import export_dynamic
from bayesbits.graph.export import export_flat
from bayesbits.graph.flat_network import FlatNetwork
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.files import write_atomically
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.optional_packages import require_extras

if TYPE_CHECKING:
    from onnx import ModelProto

FORMS = ("fast", "compact", "qdq")
ACCURACY_LEVELS = (1, 4)
"""Those of `block_weights`, which imports onnx."""
INT2_OPSET, INT2_IR_VERSION = 25, 13  # the first versions with integers of 2 bits


def export_onnx(
    small: DeployedNetwork, example_inputs: Any, path: str | Path, form: str = "fast", *, accuracy_level: int = 1
) -> None:
    """Write a deployed network to an ONNX file that onnxruntime, or another runtime, runs with integer kernels.

    ``"fast"`` and ``"compact"`` are for onnxruntime, and compute the same values with the same kernels; they differ in
    how weights are stored. ``"qdq"`` is for OpenVINO and other runtimes.

    Args:
        small: The network that :func:`bayesbits.deploy` returned.
        example_inputs: Inputs as for :func:`bayesbits.attach`. The file takes inputs of any size where the network
            does, and names these sizes, such as ``batch`` and ``length``.
        path: The file to write. It is written only if onnxruntime can load it.
        form: ``"fast"`` stores every weight of up to 8 bits in one byte and is read by older runtimes, too.
            ``"compact"`` stores weights of 2 and 4 bits packed; the runtime casts them to bytes when it loads the file.
            ``"qdq"`` has operations of the ONNX standard alone, with numbers between them that QuantizeLinear and
            DequantizeLinear round, and each runtime decides itself what it computes in integers.
        accuracy_level: For weights in groups of inputs (``Spec(group_size=...)``), how the runtime multiplies them with
            float activations. 1: in float32. 4: it rounds blocks of activations to 8 bits on the way, which takes a
            fraction of the time; ``verify`` then allows for that rounding.

    Raises:
        ImportError: If a package of the extra ``onnx`` is missing.
        TypeError: If ``small`` is not a :class:`bayesbits.DeployedNetwork`.
        ValueError: If ``form`` is not one of the three, or ``accuracy_level`` neither 1 nor 4; if ``"qdq"`` is to
            hold inputs that are quantized at run time, or weights in groups; or if the network calls an operation
            that is none of torch's own.
        RuntimeError: If onnxruntime cannot load the result; no file is written then.

    Example::

        >>> import os, tempfile
        >>> import torch
        >>> import bayesbits as bb
        >>> inputs = torch.linspace(-1, 1, 8).reshape(2, 4)
        >>> compressor = bb.attach(torch.nn.Linear(4, 2).eval(), inputs)
        >>> compressor.calibrate([inputs])
        >>> compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bb.export_onnx(bb.deploy(compressor), inputs, f"{folder}/small.onnx")
        ...     os.listdir(folder)
        ['small.onnx']
    """
    require_extras("export_onnx", "onnx")
    if not isinstance(small, DeployedNetwork):
        raise TypeError(f"export_onnx takes what bayesbits.deploy returns, and this is a {type(small).__name__}")
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it is one of {', '.join(FORMS)}")
    if accuracy_level not in ACCURACY_LEVELS:
        raise ValueError(f"accuracy_level is {accuracy_level!r}; it is one of {ACCURACY_LEVELS}")
    reason = refusal(small.integer, form)
    if reason is not None:
        raise ValueError(reason)
    _write(to_onnx(small, example_inputs, form, accuracy_level), path)


def refusal(network: IntegerNetwork, form: str) -> str | None:
    """Why a network cannot be written in a form, with the way out; None where it can."""
    return qdq_refusal(network) if form == "qdq" else None


def to_onnx(small: DeployedNetwork, example_inputs: Any, form: str, accuracy_level: int = 1) -> ModelProto:
    """The ONNX model of a deployed network."""
    from bayesbits.deploy.onnx.replace_custom_nodes import replace_custom_nodes

    refuse_custom_operations(small.program.graph)
    inputs = tuple(small.bind(*split_inputs(example_inputs)))
    if form == "qdq":
        return to_qdq_onnx(small, inputs)
    # All forms have the operations of one opset, which later ones only give further types: for those torch translates
    # attention as a single node, of which onnxruntime refuses masks that are the same for all queries.
    model = export_with_custom_nodes(small.program, small.integer, inputs, OPSET)
    opset, model.ir_version = _versions(small.integer, form)
    for entry in model.opset_import:
        if not entry.domain:
            entry.version = opset
    replace_custom_nodes(model, small.integer, compact=form == "compact", accuracy=accuracy_level)
    return model


def export_float_onnx(model: nn.Module, example_inputs: Any, path: str | Path) -> None:
    """Write a float network to an ONNX file as torch exports it, for any batch and length that it takes.

    Batch norms are not folded: the runtime folds them itself. Padding in front of a max-pooling is kept apart from it.
    """
    require_extras("export_float_onnx", "onnx")
    from bayesbits.deploy.onnx.tensor_names import name_inputs_and_outputs
    from bayesbits.deploy.onnx.zero_padding import keep_zero_padding

    args, kwargs = split_inputs(example_inputs)
    kwargs = sort_keyword_inputs(model, args, kwargs)
    flat = FlatNetwork(model, args, kwargs)
    with quiet_exporter(), evaluation_mode(flat), torch.no_grad():
        returns = flat.returns()
        found = export_dynamic(flat, lambda examples, marks: export_flat(flat, examples, marks)[0], images=False)
        proto = translate(found.exported, OPSET)
    keep_zero_padding(proto)
    name_inputs_and_outputs(proto.graph, *name_tensors(read_arguments(model, args, kwargs), returns))
    _write(proto, path)


def _write(model: ModelProto, path: str | Path) -> None:
    content = model.SerializeToString()
    check_loads(content)
    write_atomically(path, content)


def _versions(network: IntegerNetwork, form: str) -> tuple[int, int]:
    widths = [layer.bits for layer in network.layers] + [table.bits for table in network.tables]
    int2 = form == "compact" and min(widths, default=FLOAT_BITS) <= 2
    return (INT2_OPSET, INT2_IR_VERSION) if int2 else (OPSET, IR_VERSION)
