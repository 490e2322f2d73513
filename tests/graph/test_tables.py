"""Which tables of embeddings can be codes, and why others stay in float."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbits.graph.trace import trace
from bayesbits.records.topology import Table, Topology

TOKENS = torch.arange(6).reshape(2, 3)


class Words(nn.Module):
    """Tables, and a layer behind their sum."""

    def __init__(self, **tables: nn.Module) -> None:
        super().__init__()
        self.tables, self.head = nn.ModuleDict(tables), nn.Linear(4, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.stack([table(tokens) for table in self.tables.values()]).sum(0))


def reason(model: nn.Module) -> str:
    """Why the only table of a network stays in float."""
    topology = trace(model, TOKENS)
    assert topology.tables == ()
    return next(entry.reason for entry in topology.unsupported if entry.what == "embedding")


def test_tables_are_found_with_their_sizes_and_count_in_no_other_place() -> None:
    topology = trace(Words(a=nn.Embedding(7, 4), b=nn.Embedding(9, 4, padding_idx=0)), TOKENS)
    assert topology.tables == (
        Table("tables.a", "tables.a.weight", 7, 4, ("tables.a",)),
        Table("tables.b", "tables.b.weight", 9, 4, ("tables.b",)),
    )
    assert (topology.other_parameters, topology.unsupported) == (0, ())
    assert topology.parameter_tensors == {"tables.a.weight", "tables.b.weight", "head.weight"}
    assert Topology.from_json(topology.to_json()) == topology
    assert "tables.b: a table of 9 x 4 weights" in str(topology)


def test_modules_that_share_a_table_look_one_up() -> None:
    first, second = nn.Embedding(7, 4), nn.Embedding(7, 4)
    second.weight = first.weight
    (table,) = trace(Words(a=first, b=second), TOKENS).tables
    assert table == Table("tables.a", "tables.a.weight", 7, 4, ("tables.a", "tables.b"))
    (twice,) = trace(Words(a=first, b=first), TOKENS).tables
    assert twice.modules == ("tables.a",)


def test_a_table_that_is_multiplied_too_stays_in_float() -> None:
    tied = Words(a=nn.Embedding(7, 4))
    tied.head.weight = tied.tables["a"].weight
    assert reason(tied) == "a table of weights that stays in float: head (linear) reads it, too, and is no lookup"


def test_a_table_whose_module_has_code_of_its_own_stays_in_float() -> None:
    class Scaled(nn.Embedding):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens) * 2

    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.ones(7, 4))

        def forward(self, tokens: Tensor) -> Tensor:
            return F.embedding(tokens, self.rows)

    assert reason(Words(a=Scaled(7, 4))).endswith("Scaled has a forward of its own")
    assert reason(Words(a=Functional())).endswith("called by code that is not that of nn.Embedding")
    renormed = trace(Words(a=nn.Embedding(7, 4, max_norm=1.0)), TOKENS)
    assert renormed.tables == ()
    assert all("stays in float" in entry.reason for entry in renormed.unsupported)
