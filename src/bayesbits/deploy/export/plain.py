"""A float network as an ONNX file, to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from bayesbits.deploy.export.opaque import OPSET, quiet
from bayesbits.deploy.export.optional import require
from bayesbits.graph.exported import evaluation_form
from bayesbits.graph.trace import split_inputs


def export_float_onnx(model: nn.Module, example_inputs: Any, path: str | Path) -> None:
    """Write a float network as torch exports it, for batches of any size; the runtime folds its batch norms itself."""
    require("export_float_onnx")
    args, kwargs = split_inputs(example_inputs)

    def several(x: Any) -> Any:  # a size of 1 would be taken for a constant
        return torch.cat([x, x]) if isinstance(x, Tensor) and x.dim() and x.shape[0] == 1 else x

    def sizes(x: Any) -> Any:
        return {0: Dim.AUTO} if isinstance(x, Tensor) and x.dim() else None

    with quiet(), evaluation_form(model), torch.no_grad():
        torch.onnx.export(
            model,
            tuple(map(several, args)),
            str(path),
            kwargs={name: several(value) for name, value in kwargs.items()},
            dynamic_shapes=(*map(sizes, args), *map(sizes, kwargs.values())),
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            verbose=False,
        )
