"""`export_onnx`: a deployed network as an ONNX file that onnxruntime runs in integers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.packages import require
from bayesbits.deploy.onnx.torch_graph import IR_VERSION, OPSET, export_opaque
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.files import write_atomically

if TYPE_CHECKING:
    from onnx import ModelProto

FORMS = ("fast", "compact")
INT2_OPSET, INT2_IR_VERSION = 25, 13  # the first that know integers of 2 bits


def export_onnx(small: DeployedNetwork, example_inputs: Any, path: str | Path, form: str = "fast") -> None:
    """Write a deployed network to an ONNX file.

    `example_inputs` are as for `attach`; the file takes batches of any size where the network does. Both forms compute
    the same and run on the same integer kernels of onnxruntime. "fast" stores weights in whole bytes and is read by
    older runtimes too; "compact" stores weights of 2 and 4 bits as such, and the runtime widens them when it loads the
    file.
    """
    require("export_onnx")
    if not isinstance(small, DeployedNetwork):
        raise TypeError(f"export_onnx takes what bayesbits.deploy returns, and this is a {type(small).__name__}")
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it is one of {', '.join(FORMS)}")
    content = to_onnx(small, example_inputs, form).SerializeToString()
    check_loads(content)
    write_atomically(path, content)


def check_loads(content: bytes) -> None:
    """Raise where onnxruntime cannot load a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it has to say, it says in the error
    try:
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it raises classes of its own for every kind of damage
        raise RuntimeError(
            f"onnxruntime cannot load what was exported, so that nothing was written: {error}. Please report it"
        ) from error


def to_onnx(small: DeployedNetwork, example_inputs: Any, form: str) -> ModelProto:
    """The ONNX model of a deployed network."""
    from bayesbits.deploy.onnx.expand import expand

    opset, ir_version = _versions(small.integer, form)
    model = export_opaque(small.program, small.integer, tuple(small.bind(*split_inputs(example_inputs))), opset)
    model.ir_version = ir_version
    expand(model, small.integer, compact=form == "compact")
    return model


def _versions(network: IntegerNetwork, form: str) -> tuple[int, int]:
    narrow = form == "compact" and any(layer.bits <= 2 for layer in network.layers)
    return (INT2_OPSET, INT2_IR_VERSION) if narrow else (OPSET, IR_VERSION)
