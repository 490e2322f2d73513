"""An exported network: its nodes, the modules they belong to, and graphs that cannot be read."""

import pytest
import torch
from torch import Tensor, nn

from bayesbits.graph.exported_program import Program, export, is_float, operation, shape


class Nested(nn.Module):
    """One module under two names, which runs twice; and a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.again = self.block
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.again(self.block(x)) * self.scale
        return x, x.argmax(1)


@pytest.fixture(scope="module")
def program() -> Program:
    return export(Nested(), (torch.ones(2, 4),), {})


def named(program: Program, name: str) -> list:
    return [node for node in program.nodes if node.op == "call_function" and operation(node) == name]


def test_nodes_belong_to_modules_by_their_first_names(program: Program) -> None:
    assert [program.path(node) for node in named(program, "linear")] == ["block.0", "block.0"]
    assert [program.path(node) for node in named(program, "mul")] == [""]
    assert program.module(named(program, "relu")[1]) is program.model.block[1]
    assert program.module(named(program, "mul")[0]) is program.model
    assert program.canonical_path("again.0") == "block.0"
    assert [path for _, path in program.calls(named(program, "linear")[1])] == ["", "block", "block.0"]


def test_calls_are_counted(program: Program) -> None:
    assert program.calls_of == {"": 1, "block": 2, "block.0": 2, "block.1": 2}


def test_the_nodes_of_each_call(program: Program) -> None:
    first, second = (program.calls(node)[1][0] for node in named(program, "linear"))
    assert [operation(node) for node in program.nodes_in[first]] == ["linear", "relu"]
    assert program.nodes_in[second] == (named(program, "linear")[1], named(program, "relu")[1])


def test_inputs_outputs_and_parameters(program: Program) -> None:
    assert [shape(node) for node in program.inputs] == [(2, 4)]
    assert {operation(node) for node in program.outputs} == {"mul", "argmax"}
    names = [f"{name}.0.{what}" for name in ("block", "again") for what in ("weight", "bias")]
    assert sorted(program.parameters.values()) == sorted(names)
    assert program.tensor_outputs["block"] == (2, 4)
    assert "" not in program.tensor_outputs, "the network returns two tensors"


def test_values_of_nodes(program: Program) -> None:
    (product,), (largest,) = named(program, "mul"), named(program, "argmax")
    assert (is_float(product), is_float(largest)) == (True, False)
    assert (shape(product), shape(largest)) == ((2, 4), (2,))


def test_graphs_that_hide_layers_or_shapes_are_refused() -> None:
    class Conditional(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    class Chosen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x[:, 0] > 0]

    with pytest.raises(RuntimeError, match="the exported graph runs other graphs inside cond"):
        export(Conditional(), (torch.ones(2, 4),), {})
    with pytest.raises(
        RuntimeError, match=r"the shape of \w+, at graph/test_exported_program.py:\d+ \(forward\), depends"
    ):
        export(Chosen(), (torch.ones(2, 4),), {})
