"""Lookups become module calls that gather codes."""

import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.modules import TABLES, target_of
from tests.deploy.tables import fixed_words


def test_the_graph_calls_the_tables_and_keeps_no_float_ones() -> None:
    small = bb.deploy(fixed_words(8))
    calls = [str(node.target) for node in small.program.graph.nodes if node.op == "call_module"]
    assert calls[:2] == [target_of(TABLES, "words"), target_of(TABLES, "positions")]
    floats = [name for name, _ in small.program.named_parameters()]
    assert not any("words" in name or "positions" in name for name in floats)
    assert "embedding" not in " ".join(str(node.target) for node in small.program.graph.nodes)


def test_a_table_that_two_modules_look_up_is_there_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Embedding(5, 4), nn.Embedding(5, 4), nn.Linear(4, 2)
            self.second.weight = self.first.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.first(tokens) + self.second(tokens.flip(0)))

    tokens = torch.tensor([0, 3, 4])
    compressor = bb.attach(Twice().eval(), tokens)
    compressor.calibrate([tokens])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    calls = [str(node.target) for node in small.program.graph.nodes if node.op == "call_module"]
    assert calls[:2] == [target_of(TABLES, "first")] * 2
    assert small.parameter_count == 20 + 8 + 2
    torch.testing.assert_close(small(tokens), compressor.model(tokens))
