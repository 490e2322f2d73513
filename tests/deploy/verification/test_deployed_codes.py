"""The deployed codes in the shapes of the simulation: channels, padding, and matched calls, by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.verification.deployed_codes import (
    DeployedCodes,
    LayerInput,
    _find_kept_channels,
    _smallest_increasing,
    describe_heads,
    match_calls,
    quantize,
    round_to_codes,
)
from bayesbits.deploy.verification.deployed_program import CodesNode
from bayesbits.deploy.verification.simulation import QuantizerCall
from bayesbits.graph.trace import trace
from bayesbits.records.integer_network import Grid
from tests.graph.heads import heads, inputs

GRID = Grid("a.input", 4, True, 0.5, -7, 7, 3.75)
CALL, NODE = QuantizerCall("a.input", "a", 0), CodesNode("a.input", "node", False, True)


def layer(module: nn.Module, removed: set[int]) -> LayerInput:
    """A layer that reads the channels 0 to 2."""
    traced = SimpleNamespace(kind="conv", weight_shape=(2, 3, 3, 3), in_channels=(0, 1, 2), out_channels=(3, 4))
    return LayerInput(traced, module, removed)


def codes(values: Tensor, module: nn.Module | None = None, removed: set[int] = frozenset()) -> DeployedCodes:
    described = layer(module or nn.Conv2d(3, 2, 3), removed)
    return DeployedCodes({"a": described}, {"node": values}, {"a.input": GRID}, {"zero"}, {CALL: NODE})


def test_codes_are_rounded_half_to_even_and_clipped() -> None:
    x = torch.tensor([-9.0, -0.25, 0.25, 0.75, 1.2, 9.0])
    assert quantize(GRID, x).tolist() == [-7, 0, 0, 2, 2, 7]
    assert round_to_codes(GRID, torch.tensor([2.5, -3.5, 7.4])).tolist() == [2, -4, 7]


def test_the_replacement_is_code_times_step_with_zeros_in_removed_channels() -> None:
    x = torch.ones(1, 3, 1, 1)
    deployed = codes(torch.tensor([3.0, -2.0]).reshape(1, 2, 1, 1), removed={1})
    assert deployed.replacement(CALL, x).flatten().tolist() == [1.5, 0.0, -1.0]
    x = torch.tensor([4.0, 5.0, 6.0]).reshape(1, 3, 1, 1)
    assert deployed.kept(CALL, NODE, x).flatten().tolist() == [4.0, 6.0]
    assert deployed.removed(CALL, NODE, x).flatten().tolist() == [5.0]
    assert codes(x).removed(CALL, NODE, x) is None


def test_without_deployed_codes_the_replacement_is_nan_unless_nothing_depends_on_it() -> None:
    deployed, x = codes(torch.zeros(1, 3, 1, 1)), torch.ones(1, 3, 1, 1)
    assert deployed.replacement(QuantizerCall("a.input", "b", 0), x).isnan().all()
    assert deployed.missing == ["a.input"]
    assert deployed.replacement(QuantizerCall("a.input", "zero", 0), x).tolist() == torch.zeros_like(x).tolist()
    assert not deployed.replacement(QuantizerCall("a.input", "b", 0), torch.zeros_like(x)).any()


@pytest.mark.parametrize(
    ("module", "before"),
    [
        (nn.Conv2d(3, 2, 3, padding=2, padding_mode="reflect"), 2),
        (nn.Conv2d(3, 2, 2, padding="same", dilation=3, padding_mode="reflect"), 1),
    ],
)
def test_padding_in_front_of_the_layer_is_left_out(module: nn.Module, before: int) -> None:
    inner = torch.arange(12.0).reshape(1, 3, 2, 2)
    padded = nn.functional.pad(inner, (before, 3, before, 3), value=-1.0)
    assert torch.equal(codes(padded, module).codes(CALL, NODE, torch.zeros(1, 3, 2, 2)), inner.double())


def test_another_shape_is_named() -> None:
    with pytest.raises(
        bb.VerificationError, match=r"^a\.input: shape \(1, 3, 2, 2\) in the simulation, and \(1, 3, 2, 1"
    ):
        codes(torch.zeros(1, 3, 4, 4)[..., :1]).codes(CALL, NODE, torch.zeros(1, 3, 2, 2))


def test_the_columns_increase_and_have_the_smallest_sum() -> None:
    assert _smallest_increasing([[3.0, 1.0, 2.0], [0.0, 5.0, 1.0]]) == [1, 2]
    assert _smallest_increasing([[0.0, 9.0, 9.0], [9.0, 9.0, 0.0]]) == [0, 2]
    assert _smallest_increasing([[1.0, 0.0]]) == [1]


def test_calls_are_matched_with_the_nodes_whose_codes_they_have() -> None:
    values = {"first": torch.full((1, 3, 1, 1), 2.0), "second": torch.full((1, 3, 1, 1), 4.0)}
    nodes = [CodesNode("a.input", name, False, True) for name in values]
    deployed = DeployedCodes({"a": layer(nn.Conv2d(3, 2, 3), set())}, values, {"a.input": GRID}, (), {})
    calls = {QuantizerCall("a.input", "a", i): torch.full((1, 3, 1, 1), x) for i, x in enumerate((1.0, 3.0, 2.0, 1.0))}
    found = match_calls(calls, {"a": nodes}, deployed)
    assert [None if node is None else node.node for node in found.values()] == ["first", None, "second", "first"]
    with pytest.raises(bb.VerificationError, match=r"^a: called 2 times when deployed, and 1 when trained"):
        match_calls({CALL: torch.ones(1, 3, 1, 1)}, {"a": nodes}, deployed)


def test_operands_of_products_lose_heads_for_every_example_of_a_batch() -> None:
    topology = trace(heads(keys=2), inputs(), activation_products=True)
    (group,) = topology.removable_groups
    found = describe_heads(topology, {group.channels[1]})
    assert len(found) == 4
    assert set(found.values()) == {(True, True, False, False)}
    assert describe_heads(topology, set()) == {}
    lost = {"operand": (True, False) * 2}
    codes = DeployedCodes({}, {"node": torch.ones(1, 6, 2)}, {"operand": GRID}, (), {}, heads=lost)
    call, node = QuantizerCall("operand", "operand", 0), CodesNode("operand", "node", False, False)
    x = torch.arange(24.0).reshape(1, 12, 2)  # six examples of two heads
    assert torch.equal(codes.kept(call, node, x), x[:, ::2])
    assert codes.removed(call, node, x) is None  # keys need not be zero


@pytest.mark.parametrize("kept", [[True, False, True], [False, True, True]])
def test_the_kept_channels_of_an_operand_are_those_without_which_nothing_is_lost(kept: list[bool]) -> None:
    masks = {(True, False, True), (False, True, True), (True, True, False)}
    x = torch.full((1, 3, 2), 0.2) * torch.tensor(kept).reshape(1, 3, 1)  # below half a step: all codes are zero
    axis, found = _find_kept_channels(GRID, x, torch.zeros(1, 2, 2), masks)
    assert (axis, found.tolist()) == (1, [channel for channel, stays in enumerate(kept) if stays])
    x[0, found[0], 0] = 0.26  # a tie that was rounded down: the codes of another mask differ less
    assert _find_kept_channels(GRID, x, torch.zeros(1, 2, 2), masks)[1].tolist() == found.tolist()


def test_equal_numbers_are_told_apart_by_their_codes() -> None:
    x = torch.tensor([0.0, 0.5, 0.0]).reshape(1, 3, 1)
    found = _find_kept_channels(
        GRID, x, torch.tensor([1.0, 0.0]).reshape(1, 2, 1), {(True, True, False), (False, True, True)}
    )
    assert found[1].tolist() == [1, 2]
