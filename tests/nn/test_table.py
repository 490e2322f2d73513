"""A table whose rows are quantized."""

import copy
import pickle

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.nn.table import AttachedTable

TOKENS = torch.tensor([[1, 3, 3], [0, 4, 1]])


def words(per_row: bool = True, gates: str = "hard_concrete", **options: object) -> tuple[nn.Module, bb.Compressor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, **options), nn.Linear(4, 3))  # type: ignore[arg-type]
    with torch.no_grad():
        model[0].weight[2] *= 100
    compressor = bb.attach(model, TOKENS, bb.Spec(per_channel_weights=per_row, gates=gates))
    compressor.calibrate([TOKENS])
    return model, compressor


@pytest.mark.parametrize("per_row", [True, False])
def test_rows_are_those_of_the_quantized_table(per_row: bool) -> None:
    model, compressor = words(per_row)
    table, quantizer = model[0], compressor.attachment.quantizers["0.weight"]
    assert isinstance(table, AttachedTable)
    assert quantizer.range_shape == ((5,) if per_row else ())
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8))
    largest = table.weight.detach().abs().amax(1, keepdim=True) if per_row else table.weight.detach().abs().max()
    step = largest * 255 / 254 * 2 / 15  # the largest number is code 127 of 8 bits
    codes = torch.round(table.weight.detach() / step).clamp(-7, 7)
    torch.testing.assert_close(table(TOKENS), (codes * step)[TOKENS])
    assert bool((table(TOKENS)[0, 1] == 0).all()) is not per_row, "a row of small numbers has a step of its own"


def test_long_rows_have_a_range_each_whatever_the_spec_says() -> None:
    tables = nn.ModuleDict({"long": nn.Embedding(5, 64), "short": nn.Embedding(5, 63)})
    tables["head"] = nn.Linear(127, 2)
    tables.forward = lambda tokens: tables["head"](torch.cat([tables["long"](tokens), tables["short"](tokens)], -1))  # type: ignore[method-assign]
    quantizers = bb.attach(tables, TOKENS).attachment.quantizers
    assert (quantizers["long.weight"].range_shape, quantizers["short.weight"].range_shape) == ((5,), ())
    assert quantizers["head.weight"].range_shape == ()


def test_gradients_reach_the_rows_that_were_looked_up_and_the_gates() -> None:
    model, compressor = words(gates="sigmoid", padding_idx=0)
    model(TOKENS).square().sum().backward()
    gradient = model[0].weight.grad
    assert gradient is not None
    assert [bool(row.any()) for row in gradient] == [False, True, False, True, True], "row 0 pads, row 2 is not read"
    quantizer = compressor.attachment.quantizers["0.weight"]
    assert quantizer.gates.logits.grad is not None
    assert bool(quantizer.gates.logits.grad.any())


def test_a_table_learns_its_width_by_its_bytes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    compressor = bb.attach(model, TOKENS, bb.Spec(penalty="expected_bytes", gates="hard_sigmoid"))
    compressor.calibrate([TOKENS])
    logits = compressor.attachment.quantizers["0.weight"].gates.logits
    (gradient,) = torch.autograd.grad(compressor.penalty(), logits)
    assert bool((gradient > 0).all()), "every gate that is open costs bytes"
    paper = bb.attach(compressor.detach(), TOKENS, bb.Spec(gates="hard_sigmoid"))
    paper.calibrate([TOKENS])
    logits = paper.attachment.quantizers["0.weight"].gates.logits
    (gradient,) = torch.autograd.grad(paper.penalty(), logits)
    assert not bool(gradient.any()), "a table has no MACs"


def test_the_float_table_comes_back() -> None:
    model, compressor = words()
    before = copy.deepcopy(model[0].weight)
    again = pickle.loads(pickle.dumps(model)).eval()
    assert torch.equal(again(TOKENS), model.eval()(TOKENS))
    compressor.detach()
    assert type(model[0]) is nn.Embedding
    assert torch.equal(model[0](TOKENS), before[TOKENS])
    assert not hasattr(model[0], "bayesbits_table")


def test_a_table_that_was_replaced_is_noticed() -> None:
    model, compressor = words()
    model[0] = nn.Embedding(5, 4)
    with pytest.raises(ValueError, match="0 was replaced after attaching"):
        compressor.plan()


@pytest.mark.parametrize("method", ["lsq", "twn", "dq"])
def test_other_methods_leave_tables_at_8_bits(method: str) -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    compressor = bb.attach(model, TOKENS, bb.Spec(method=method))
    compressor.calibrate([TOKENS])
    assert compressor.plan().bits["0.weight"] == 8
    rule = bb.attach(compressor.detach(), TOKENS, bb.Spec(method=method, rules={"0": {"bits": 4}}))
    rule.calibrate([TOKENS])
    assert rule.plan().bits["0.weight"] == 4


def test_rules_and_plans_say_the_width_of_a_table() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    float_table = bb.attach(model, TOKENS, bb.Spec(rules={"0": {"skip": True}}))
    assert type(model[0]) is nn.Embedding
    assert float_table.plan().bits["0.weight"] == 32
    float_table.detach()
    fixed = bb.attach(model, TOKENS, bb.Spec(rules={"0.weight": {"bits": 4}}))
    fixed.calibrate([TOKENS])
    assert fixed.plan().bits["0.weight"] == 4
    assert bb.baselines.uniform(fixed, [TOKENS], 8, 8).bits["0.weight"] == 4
    before = bb.Plan({name: bits for name, bits in fixed.plan().bits.items() if name != "0.weight"})
    fixed.fix(before)
    assert torch.equal(model[0](TOKENS), model[0].weight[TOKENS]), "a plan that does not know tables leaves them"
