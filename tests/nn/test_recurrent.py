"""A recurrent layer whose weights are quantized."""

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import bayesbits as bb
from bayesbits.nn.recurrent import AttachedRecurrent
from tests.nn.recurrent import FEATURES, HIDDEN, LENGTH, Sequences, compressed, inputs, rounded_cell

KINDS = (nn.LSTM, nn.GRU, nn.RNN)


def weights_of(cell: nn.RNNBase) -> list[str]:
    return [name for name, parameter in cell.named_parameters() if parameter.dim() == 2]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    per_channel=st.booleans(),
    data=st.data(),
)
def test_it_computes_what_torch_does_with_rounded_weights(
    kind: Any, layers: int, bidirectional: bool, bias: bool, per_channel: bool, data: Any
) -> None:
    compressor = compressed(
        kind, per_channel=per_channel, num_layers=layers, bidirectional=bidirectional, bias=bias,
        spec={"bits": (2, 4, 8)},
    )  # fmt: skip
    cell: Any = compressor.model.cell
    bits = {name: data.draw(st.sampled_from((2, 4, 8)), label=name) for name in weights_of(cell)}
    assert len(bits) == 2 * layers * (1 + bidirectional)
    plan = bb.Plan.uniform(compressor.topology, 8, 8).bits
    compressor.fix(bb.Plan({**plan, **{f"cell.{name}": width for name, width in bits.items()}}))
    assert all(len(cell.bayesbits_table.quantizers[name].beta.reshape(-1)) == (
        len(getattr(cell, name)) if per_channel else 1
    ) for name in bits)  # fmt: skip
    x = torch.randn(2, LENGTH, FEATURES, generator=torch.Generator().manual_seed(1))
    expected, state = rounded_cell(cell, bits, per_channel=per_channel)(x)
    with torch.no_grad():
        found, last = cell(x)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last, state, rtol=1e-5, atol=1e-6)


def test_states_and_keywords_reach_the_layer() -> None:
    compressor = compressed(nn.GRU)
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    cell, x, state = compressor.model.cell, torch.randn(2, LENGTH, FEATURES), torch.randn(1, 2, HIDDEN)
    expected = rounded_cell(cell, dict.fromkeys(weights_of(cell), 8), per_channel=False)(x, state)[0]
    torch.testing.assert_close(cell(input=x, hx=state)[0], expected)
    torch.testing.assert_close(cell(x[0], state[:, 0])[0], expected[0])


def test_long_rows_share_a_range_unless_the_spec_says_otherwise() -> None:
    model = nn.ModuleDict({"cell": nn.GRU(80, 4), "head": nn.Linear(4, 2)})
    model.forward = lambda x: model["head"](model["cell"](x)[0])  # type: ignore[method-assign]
    quantizers = bb.attach(model, torch.zeros(3, 1, 80)).attachment.quantizers
    assert quantizers["cell.weight_ih_l0"].range_shape == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_reach_weights_gates_and_ranges(kind: Any, autocast: bool) -> None:
    compressor = compressed(kind, bidirectional=True, spec={"bits": (2, 4), "gates": "sigmoid", "prune": False})
    model = compressor.model.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(inputs())
    (output.float().square().sum() + 1e-3 * compressor.penalty()).backward()
    for name in weights_of(model.cell):
        quantizer = compressor.attachment.quantizers[f"cell.{name}"]
        for learned in (getattr(model.cell, name), quantizer.gates.logits, quantizer.log_beta):
            assert learned.grad is not None, name
            assert bool(learned.grad.any()), name
    assert model.cell.bias_ih_l0.grad is not None


def test_the_gradient_of_a_weight_passes_where_it_is_inside_of_its_range() -> None:
    compressor = compressed(nn.RNN, spec={"bits": (8,)})
    cell = compressor.model.cell
    with torch.no_grad():
        compressor.attachment.quantizers["cell.weight_ih_l0"].log_beta -= 3.0
    beta = compressor.attachment.quantizers["cell.weight_ih_l0"].beta
    outside = cell.weight_ih_l0.detach().abs() > beta
    assert 0 < int(outside.sum()) < outside.numel()
    cell(torch.randn(2, LENGTH, FEATURES))[0].square().sum().backward()
    assert torch.equal(cell.weight_ih_l0.grad == 0, outside)


def test_a_penalty_charges_the_gates_by_the_macs_of_their_weight() -> None:
    compressor = compressed(nn.LSTM, spec={"gates": "hard_sigmoid", "prune": False, "penalty": "paper"})
    logits = [compressor.attachment.quantizers[f"cell.weight_{way}_l0"].gates.logits for way in ("ih", "hh")]
    first, second = torch.autograd.grad(compressor.penalty(), logits)
    torch.testing.assert_close(second / first, torch.full_like(first, HIDDEN / FEATURES))
    expected = compressed(nn.LSTM, spec={"gates": "hard_sigmoid", "prune": False, "penalty": "expected_bops"})
    logits = [expected.attachment.quantizers[f"cell.weight_{way}_l0"].gates.logits for way in ("ih", "hh")]
    first, second = torch.autograd.grad(expected.penalty(), logits)
    assert bool((first > 0).all())
    torch.testing.assert_close(second / first, torch.full_like(first, HIDDEN / FEATURES))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler hides it, but from warnings that are errors
@pytest.mark.check
def test_the_network_can_be_compiled() -> None:
    compressor = compressed(nn.LSTM, num_layers=2)
    model, x = compressor.model, inputs()
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(x), model(x))
    model.train()
    compiled(x).square().sum().backward()
    assert bool(model.cell.weight_hh_l1.grad.any())


def test_copies_pickles_state_dicts_and_checkpoints_have_what_is_attached() -> None:
    compressor = compressed(nn.LSTM, bidirectional=True, spec={"bits": (2, 4)})
    model, x = compressor.model, inputs()
    expected = model(x)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(again.cell, AttachedRecurrent)
        assert isinstance(again.cell, nn.LSTM)
        assert torch.equal(again.eval()(x), expected)
    other = compressed(nn.LSTM, bidirectional=True, spec={"bits": (2, 4)}).model
    with torch.no_grad():
        other.cell.weight_hh_l0 *= 2
    assert not torch.equal(other(x), expected)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), expected)
    other.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    assert torch.equal(other(x), expected)
    float_state = Sequences(nn.LSTM, bidirectional=True).state_dict()
    assert model.load_state_dict({**model.state_dict(), **float_state}) is not None
    assert set(float_state) == {name for name in model.state_dict() if not name.startswith("bayesbits")}
    checkpoint(model.train(), x, use_reentrant=False).sum().backward()
    assert bool(model.cell.weight_ih_l0_reverse.grad.any())


def test_weights_that_are_given_for_one_call_are_rounded_too() -> None:
    compressor = compressed(nn.GRU)
    compressor.fix(bb.Plan.uniform(compressor.topology, 2, 8))
    model, x = compressor.model, inputs()
    given = {"cell.weight_hh_l0": model.cell.weight_hh_l0.detach().flip(0)}
    with torch.no_grad():
        found = functional_call(model, given, (x,))
        model.cell.weight_hh_l0.copy_(given["cell.weight_hh_l0"])
        assert torch.equal(found, model(x))


def test_the_float_layer_comes_back() -> None:
    torch.manual_seed(1)
    model, x = Sequences(nn.GRU, num_layers=2).eval(), inputs()
    before = model(x)
    compressor = bb.attach(model, x, bb.Spec(bits=(2,)))
    compressor.calibrate([x])
    assert not torch.equal(model(x), before)
    assert compressor.detach() is model
    assert type(model.cell) is nn.GRU
    assert not hasattr(model.cell, "bayesbits_table")
    assert torch.equal(model(x), before)


def test_a_layer_that_was_replaced_is_noticed() -> None:
    compressor = compressed(nn.GRU)
    compressor.model.cell = nn.GRU(FEATURES, HIDDEN, batch_first=True)
    with pytest.raises(ValueError, match="cell was replaced after attaching"):
        compressor.plan()


def test_rules_and_plans_say_the_widths() -> None:
    rules = {"cell.weight_hh*": {"skip": True}, "cell.weight_ih_l0": {"bits": 4}}
    compressor = compressed(nn.LSTM, num_layers=2, spec={"rules": rules, "bits": (2, 8)})
    bits = compressor.plan().bits
    assert [bits[f"cell.weight_{one}"] for one in ("ih_l0", "ih_l1", "hh_l0", "hh_l1")] == [4, 8, 32, 32]
    assert set(compressor.model.cell.bayesbits_table.quantizers) == {"weight_ih_l0", "weight_ih_l1"}
    unnamed = bb.Plan({name: width for name, width in bits.items() if not name.startswith("cell.")})
    compressor.fix(unnamed)
    x = torch.randn(2, LENGTH, FEATURES)
    float_cell = rounded_cell(compressor.model.cell, {}, per_channel=False)
    assert torch.equal(compressor.model.cell(x)[0], float_cell(x)[0]), "a plan that does not know them leaves them"


@pytest.mark.parametrize("method", ["lsq", "twn", "dq"])
def test_other_methods_leave_recurrent_weights_at_8_bits(method: str) -> None:
    compressor = bb.attach(Sequences(nn.GRU), inputs(), bb.Spec(method=method))
    compressor.calibrate([inputs()])
    assert compressor.plan().bits["cell.weight_hh_l0"] == 8


def test_an_uncalibrated_layer_says_so() -> None:
    model = Sequences(nn.GRU)
    bb.attach(model, inputs())
    with pytest.raises(RuntimeError, match="calibrate"):
        model.cell(torch.zeros(1, LENGTH, FEATURES))
