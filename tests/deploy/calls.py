"""Networks with unusual calls and results, and one check of everything that a deployed network takes and returns."""

from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import bayesbits as bb
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.pytree import describe, tensors_in


def rows(seed: int = 0, count: int = 3) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def deploy_uniformly(model: nn.Module, inputs: Any, bits: int = 8) -> tuple[bb.Compressor, bb.DeployedNetwork]:
    torch.manual_seed(0)
    compressor = bb.attach(model.eval(), inputs, bb.Spec(bits=(4, 8), residual_bits=None))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, bits, bits))
    return compressor, bb.deploy(compressor)


def run(model: nn.Module, inputs: Any) -> Any:
    args, kwargs = split_inputs(inputs)
    with torch.no_grad():
        return model(*args, **kwargs)


def check_call(model: nn.Module, inputs: Any, folder: Path, bits: int = 8) -> tuple[list[str], list[str]]:
    """Deploy, save, load, export, and compare what comes out; returns the names of the file's inputs and outputs."""
    compressor, small = deploy_uniformly(model, inputs, bits)
    expected, actual = run(model, inputs), run(small, inputs)
    check_close(actual, expected)
    bb.save(small, folder / "small")
    for loaded in (bb.load(folder / "small"), bb.load(folder / "small", compressor.detach())):
        again = run(loaded, inputs)
        assert describe(again, []) == describe(actual, [])
        assert all(map(torch.equal, tensors_in(again), tensors_in(actual)))
    bb.export_onnx(small, inputs, folder / "small.onnx")
    session = onnxruntime.InferenceSession(str(folder / "small.onnx"), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    assert (tuple(names), tuple(outputs)) == (small.integer.structure.inputs, small.integer.structure.outputs)
    structure = small.integer.structure
    part = tree_map_only(Tensor, lambda x: x[:2] if structure.dynamic_batch and x.dim() else x, inputs)
    feeds = {name: x.numpy() for name, x in zip(names, small.bind(*split_inputs(part)), strict=True)}
    for mine, theirs in zip(session.run(None, feeds), tensors_in(run(small, part)), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), theirs, rtol=1e-5, atol=1e-6)
    return names, outputs


def check_close(actual: Any, expected: Any) -> None:
    """The same containers, and the same numbers in them."""
    assert describe(actual, []) == describe(expected, [])
    for mine, theirs in zip(tensors_in(actual), tensors_in(expected), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-4, atol=1e-5)


class Taking(nn.Module):
    """A dict, flags, and whatever else is given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, batch: dict[str, Any], flag: bool = True, mode: str | None = None, **more: Tensor) -> Tensor:
        x = self.left(batch["image"]) - self.right(more["zeta"] * 2 + more["alpha"] + batch["others"][0])
        x = x if batch["scale"] is None else x * batch["scale"]
        return self.head(torch.relu(x) if flag else torch.tanh(x) + (1 if mode == "shifted" else 0))


BATCH = {"image": rows(1), "others": [rows(2)], "scale": None}


class Positions(nn.Module):
    """Numbers for every place, which are no batch, before the rows that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, positions: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return self.layer(batch["x"] * positions[:, None] - batch["y"])


class FixedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(3, 8))
