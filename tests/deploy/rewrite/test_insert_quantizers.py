"""Quantizers stand where they were in training: on operands, inputs of layers, and tensors that max-pools index."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.decision import Decision
from bayesbits.deploy.rewrite.export_float_network import export_float_network
from bayesbits.deploy.rewrite.fold_batch_norm import fold_batch_norm
from bayesbits.deploy.rewrite.insert_quantizers import insert_quantizers
from bayesbits.records.integer_network import Grid
from tests.deploy.comparison import call


class Unpooling(nn.Module):
    """A max-pool whose indices say where the values of another map go."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.first, self.norm, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.pool, self.last = nn.MaxPool2d(2, return_indices=True), nn.Conv2d(8, 2, 3, padding=1)
        self.relu, self.functional = nn.ReLU(), functional

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        x, indices = self.pool(F.relu(x) if self.functional else self.relu(x))
        return self.last(F.max_unpool2d(F.relu(self.inner(x)), indices, 2))


@pytest.mark.parametrize(("functional", "residual_bits"), [(True, 8), (False, 8), (False, None)])
def test_indices_of_a_max_pool_are_those_of_the_simulation(functional, residual_bits):
    """At 2 bits many sums are equal, and in float their last bits would decide which is the largest."""
    torch.manual_seed(0)
    model, inputs = Unpooling(functional).eval(), torch.randn(4, 3, 16, 16)
    compressor = bb.attach(model, inputs, bb.Spec(bits=(2, 8), input_bits=2, residual_bits=residual_bits))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 2, 2, input_bits=2, residual_bits=residual_bits))
    small = bb.deploy(compressor)
    expected, actual = call(model, inputs), call(small, inputs)
    assert (actual - expected).norm() <= 1e-5 * expected.norm()
    assert compressor.topology.pooled_tensors == {"norm.output" if functional else "relu.output"}
    plan = compressor.plan()
    compressor.fix(bb.Plan({name: width for name, width in plan.bits.items() if not name.endswith("output")}))
    assert "indices of a max-pool" in str(bb.deploy(compressor))


class Shared(nn.Module):
    """Two layers that read one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


def inserted(grid: Grid, float_layers: tuple[str, ...] = ()) -> list[str]:
    """The operations behind inserting, with the numbers that they are given."""
    decision = Decision(Shared().eval(), (torch.ones(1, 3),), {}, None, frozenset(), {}, {"left.input": grid})
    program = export_float_network(decision)
    fold_batch_norm(program)
    for entry in program.layers:
        entry.float_reason = "asked for" if entry.layer.name in float_layers else None
    insert_quantizers(program)
    program.graph.lint()
    calls = [node for node in program.graph.nodes if node.op.startswith("call")]
    return [" ".join(map(str, (node.target, *node.args[1:]))) for node in calls if "add" not in str(node.target)]


def test_a_tensor_is_quantized_once_for_all_layers_that_read_it():
    grid = Grid("left.input", 8, True, 0.5, -127, 127, 64.0)
    assert inserted(grid) == ["quantizers./left/input", "layers./left", "layers./right"]
    assert inserted(grid, ("right",)) == [
        "quantizers./left/input", "dequantizers./left/input", "layers./left", "layers./right"
    ]  # fmt: skip


def test_above_16_bits_numbers_are_clipped_and_rounded_while_float32_holds_the_codes():
    upper = (torch.tensor(64.0) * (1 - 1e-7)).item()
    layers = ["layers./left", "layers./right"]
    rounding = ["aten.div.Scalar 0.5", "aten.round.default", "aten.mul.Scalar 0.5"]
    assert inserted(Grid("left.input", 24, True, 0.5, 0, 0, 64.0)) == [
        f"aten.clamp.default {-upper} {upper}", *rounding, *layers
    ]  # fmt: skip
    assert inserted(Grid("left.input", 32, False, 0.5, 0, 0, 64.0)) == [f"aten.clamp.default 0.0 {upper}", *layers]
