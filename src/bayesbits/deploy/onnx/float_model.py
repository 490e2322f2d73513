"""A float network as an ONNX file, to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesbits.deploy.onnx.export import check_loads
from bayesbits.deploy.onnx.packages import require
from bayesbits.deploy.onnx.torch_graph import OPSET, quiet
from bayesbits.deploy.signature import name_tensors, read_arguments, sort_keyword_inputs
from bayesbits.graph.export import export_dynamic_batch, export_flat
from bayesbits.graph.flat_network import FlatNetwork
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.files import write_atomically
from bayesbits.utils.modes import evaluation_mode


def export_float_onnx(model: nn.Module, example_inputs: Any, path: str | Path) -> None:
    """Write a float network as torch exports it, for batches of any size where it takes them.

    Its batch norms are not folded: the runtime does that itself.
    """
    require("export_float_onnx")
    from bayesbits.deploy.onnx.inputs_outputs import name_ends

    args, kwargs = split_inputs(example_inputs)
    kwargs = sort_keyword_inputs(model, args, kwargs)
    flat = FlatNetwork(model, args, kwargs)
    with quiet(), evaluation_mode(flat), torch.no_grad():
        returns = flat.returns()
        exported = export_dynamic_batch(flat, lambda examples, marks: export_flat(flat, examples, marks)[0])
        translated = torch.onnx.export(exported, dynamo=True, opset_version=OPSET, verbose=False)
    assert translated is not None
    model_proto = translated.model_proto
    name_ends(model_proto.graph, *name_tensors(read_arguments(model, args, kwargs), returns))
    content = model_proto.SerializeToString()
    check_loads(content)
    write_atomically(path, content)
