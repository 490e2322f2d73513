"""The deployed network as a module: its results, its table, and its exported program."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import bayesbits as bb
from tests.deploy.calls import BATCH, FixedBatch, Taking, check_close, deploy_uniformly, rows, run
from tests.deploy.comparison import call
from tests.deploy.networks import compress, deployed, make
from tests.deploy.test_signature import Returning


@dataclass
class Cache:
    """An object of a class that torch does not know."""

    keys: list[Tensor]
    length: int
    owner: Any = None


def test_objects_are_returned_as_their_attributes():
    def make(y: Tensor, x: Tensor, scale: Tensor) -> Any:
        cache = Cache([y, x], 2)
        cache.owner = cache  # a circle
        return namedtuple("Output", ("logits", "cache"))(y, cache)

    _, small = deploy_uniformly(Returning(make), rows())
    logits, cache = run(small, rows())
    assert torch.equal(cache["keys"][0], logits)
    assert torch.equal(cache["keys"][1], rows())
    assert set(cache) == {"keys"}


class ReturnedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x), len(x)


@pytest.mark.parametrize("make", [FixedBatch, ReturnedBatch])
def test_a_batch_that_the_code_fixes_is_not_any(make, tmp_path):
    example = torch.randn(3, 2, 4) if make is FixedBatch else rows()
    _, small = deploy_uniformly(make(), example)
    assert not small.integer.structure.dynamic_batch
    assert "takes only batches of the size" in str(small)
    check_close(run(small, example), run(small, example))
    small.export_program()
    bb.export_onnx(small, example, tmp_path / "small.onnx")


def test_exported_programs_take_nested_inputs():
    inputs = (BATCH, True)

    class Positional(Taking):
        def forward(self, batch: dict[str, Any], flag: bool = True) -> Tensor:
            return super().forward(batch, flag, zeta=batch["image"], alpha=batch["image"])

    _, small = deploy_uniformly(Positional(), inputs)
    program = small.export_program().module()
    for count in (1, 3):
        part = tree_map_only(Tensor, lambda x, count=count: x[:count], BATCH)
        assert torch.equal(program(part), run(small, (part,)))


def test_parameters_of_modules_that_never_run_are_not_counted():
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.never, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.used(x))

    compressor, small = deploy_uniformly(Spare(), rows())
    held = sum(
        p.numel() for module in (small.integer.tensors["used.codes"], small.integer.bias("used")) for p in [module]
    )
    assert small.parameter_count == compressor.cost().parameters == held + 8


def test_the_exported_program_has_plain_operations_only(tmp_path):
    _, small, inputs = deployed("residual")
    program = small.export_program()
    torch.export.save(program, tmp_path / "small.pt2")
    loaded = torch.export.load(tmp_path / "small.pt2")
    targets = [node.target for node in loaded.graph.nodes if node.op == "call_function"]
    assert all(target.namespace == "aten" for target in targets if isinstance(target, torch._ops.OpOverload))
    assert torch.equal(loaded.module()(inputs), call(small, inputs))
    assert loaded.module()(inputs[:1]).shape[0] == 1


def test_every_batch_size():
    model, inputs = make("residual")
    small = bb.deploy(compress(model, inputs[:1]))
    assert small.integer.structure.dynamic_batch
    together = call(small, inputs)
    assert torch.equal(together, torch.cat([call(small, image[None]) for image in inputs]))


def test_the_table_names_every_layer():
    _, small, _ = deployed("lenet5")
    assert all(layer.name in str(small) for layer in small.integer.layers)
    assert f"{small.parameter_count:,} parameters" in str(small)


def test_several_inputs_by_name_and_a_mapping_of_outputs():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 4), nn.Linear(5, 4)

        def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
            return {"sum": self.left(a) + self.right(b), "left": self.left(a) * scale}

    inputs = {"b": torch.randn(2, 5), "a": torch.randn(2, 3)}
    compressor = compress(Named(), inputs, bb.Spec(bits=(8,)), bits=(8,))
    small = bb.deploy(compressor)
    output = small(**inputs)
    assert list(output) == ["sum", "left"]
    assert torch.equal(small(inputs["a"], inputs["b"])["sum"], output["sum"])
