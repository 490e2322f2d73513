"""What rules mean for a network: widths of tensors, layers that may be pruned, and rules that cannot be followed."""

from dataclasses import replace
from typing import Any

import pytest

from bayesbits.compression.search_space import SearchSpace, find_search_space
from bayesbits.compression.spec import Spec
from bayesbits.graph.trace import trace
from bayesbits.records.topology import Addition, Topology
from tests.deploy.tables import TOKENS, Words
from tests.graph.attention import attention, examples
from tests.graph.networks import ROWS, Tied, traced
from tests.networks import traced_once

ALL = (2, 4, 8, 16, 32)


def resolved(name: str, rules: dict[str, Any], **options: Any) -> SearchSpace:
    return find_search_space(Spec(rules=rules, **options), topology(name))


def topology(name: str) -> Topology:
    return traced(name)[2]


def test_without_rules_the_spec_decides() -> None:
    choices = resolved("residual", {})
    weights, inputs = ["stem", "inner", "outer", "head"], ["inner", "outer", "head"]
    assert choices.widths == {
        **{f"{name}.weight": ALL for name in weights},
        "stem.input": (8,),
        **{f"{name}.input": ALL for name in inputs},
        "outer_norm.output": (8,),
    }
    assert choices.prunable == {"stem", "inner", "outer"}
    assert choices.skipped == frozenset()
    assert (choices.fixed("stem.input"), choices.fixed("head.input")) == (8, None)


@pytest.mark.parametrize(("input_bits", "widths"), [(4, (4,)), ("learned", ALL), (32, (32,))])
def test_the_network_input(input_bits: Any, widths: tuple[int, ...]) -> None:
    assert resolved("residual", {}, input_bits=input_bits).widths.get("stem.input") == widths


def test_bounds_concern_an_input_that_is_learned() -> None:
    bounds = {"*": {"max_bits": 8}}
    assert resolved("residual", bounds, input_bits="learned").widths["stem.input"] == (2, 4, 8)
    assert resolved("residual", bounds, input_bits=16).widths["stem.input"] == (16,)


@pytest.mark.parametrize(("residual_bits", "widths"), [(None, None), (4, (4,)), ("learned", ALL), (32, None)])
def test_residual_operands(residual_bits: Any, widths: tuple[int, ...] | None) -> None:
    assert resolved("residual", {}, residual_bits=residual_bits).widths.get("outer_norm.output") == widths


def test_a_rule_can_wake_or_silence_an_operand() -> None:
    named = "outer_norm.output"
    assert resolved("residual", {named: {"bits": 4}}, residual_bits=None).widths[named] == (4,)
    assert resolved("residual", {named: {"max_bits": 4}}, residual_bits=None).widths[named] == (2, 4)
    assert named not in resolved("residual", {named: {"skip": True}}).widths


def test_a_layers_rule_concerns_its_weight_input_and_channels() -> None:
    choices = resolved("residual", {"inner": {"bits": 4, "prune": False}})
    assert (choices.widths["inner.weight"], choices.widths["inner.input"]) == ((4,), (4,))
    assert choices.widths["outer.weight"] == ALL
    assert choices.prunable == {"stem", "outer"}


def test_a_tensors_rule_concerns_that_tensor_only() -> None:
    choices = resolved("residual", {"inner.weight": {"min_bits": 4, "max_bits": 8}, "stem.input": {"bits": 32}})
    assert choices.widths["inner.weight"] == (4, 8)
    assert choices.widths["stem.input"] == (32,)
    assert choices.widths["inner.input"] == ALL


def test_bounds_for_all_layers_leave_the_network_input_as_it_is() -> None:
    choices = resolved("residual", {"*": {"max_bits": 4}})
    assert choices.widths["stem.input"] == (8,)
    assert choices.widths["outer_norm.output"] == (8,)
    learned = [name for name in choices.widths if name not in ("stem.input", "outer_norm.output")]
    assert {choices.widths[name] for name in learned} == {(2, 4)}
    assert resolved("residual", {"stem": {"bits": 4}}).widths["stem.input"] == (4,)


def test_later_patterns_override_earlier_ones_field_by_field() -> None:
    choices = resolved(
        "residual",
        {
            "*": {"min_bits": 4, "prune": False, "min_channels": 2},
            "inner": {"max_bits": 8, "min_channels": 3},
            "outer": {"bits": 2, "prune": True},
            "head": {"skip": True},
            "head.input": {"bits": 8},
        },
    )
    assert choices.widths["stem.weight"] == (4, 8, 16, 32)
    assert choices.widths["inner.weight"] == (4, 8)
    assert choices.widths["outer.weight"] == (2,)
    assert choices.prunable == {"outer"}
    assert choices.skipped == {"head"}
    assert choices.min_channels == {"stem": 2, "inner": 3, "outer": 2}
    assert (choices.widths["head.weight"], choices.widths["head.input"]) == ((32,), (8,))


def test_a_later_rule_takes_a_skipped_layer_back() -> None:
    choices = resolved("residual", {"*": {"skip": True}, "inner": {"max_bits": 8}})
    assert choices.skipped == {"stem", "outer", "head"}
    assert (choices.widths["inner.weight"], choices.widths["stem.weight"]) == ((2, 4, 8), (32,))
    assert choices.widths["stem.input"] == (32,)
    assert choices.prunable == {"inner"}


def test_pruning_can_be_allowed_for_single_layers() -> None:
    assert resolved("residual", {}, prune=False).prunable == frozenset()
    assert resolved("residual", {"i*": {"prune": True}, "head": {"prune": True}}, prune=False).prunable == {"inner"}


def test_a_depthwise_layer_that_keeps_its_channels_keeps_those_of_its_producer() -> None:
    assert resolved("depthwise", {}).prunable == {"expand", "reduce"}
    assert resolved("depthwise", {"filter": {"prune": False}}).prunable == {"reduce"}


def test_a_demand_of_one_layer_holds_for_the_tensor_that_it_shares() -> None:
    choices = resolved("concatenation", {"right": {"bits": 4}})
    assert (choices.widths["right.weight"], choices.widths["left.input"]) == ((4,), (4,))
    assert choices.widths["left.weight"] == ALL


@pytest.mark.parametrize("other", [{"bits": 8}, {"skip": True}])
def test_layers_that_disagree_on_a_shared_activation(other: dict[str, Any]) -> None:
    rules: dict[str, Any] = {"left": {"bits": 4}, "right": other}
    with pytest.raises(ValueError, match=r"left and right share the tensor left.input, but their rules disagree"):
        resolved("concatenation", rules)
    assert resolved("concatenation", {**rules, "left.input": {"bits": 2}}).widths["left.input"] == (2,)


def test_one_skipped_layer_does_not_leave_its_neighbors_input_in_float() -> None:
    with pytest.raises(ValueError, match=r"right and left share the tensor left.input.*skip=True; nothing said"):
        resolved("concatenation", {"right": {"skip": True}})


def test_layers_that_disagree_on_a_tied_weight() -> None:
    tied = traced_once(Tied, ROWS)
    assert find_search_space(Spec(rules={"second": {"max_bits": 4}}), tied).widths["first.weight"] == (2, 4)
    with pytest.raises(ValueError, match=r"first and second share the tensor first.weight.*max_bits=8; max_bits=4"):
        find_search_space(Spec(rules={"first": {"max_bits": 8}, "second": {"max_bits": 4}}), tied)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"iner": {"bits": 4}}, r"'iner' matches no layer and no tensor; closest are inner"),
        ({"Inner": {"bits": 4}}, r"'Inner' matches no layer"),
        ({"inner.wieght": {"bits": 4}}, r"closest are inner.weight"),
        ({"inner.weight": {"min_channels": 2}}, r"speaks of channels, but matches only tensors; name the layer"),
        ({"inner.weight": {"prune": False}}, r"speaks of channels, but matches only tensors; name the layer"),
        (
            {"inner": {"min_bits": 5, "max_bits": 7}},
            r"no width for inner.weight \(min_bits=5, max_bits=7\)",
        ),
        ({"stem.input": {"max_bits": 4}}, r"no width for stem.input \(max_bits=4\), which is fixed at 8: give it"),
    ],
)
def test_rules_that_cannot_be_followed(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolved("residual", rules)


def test_bounds_of_two_rules_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="min_bits is 8, more than"):
        resolved("residual", {"*": {"min_bits": 8}, "inner": {"max_bits": 4}})


def test_an_operand_of_two_additions_is_one_tensor() -> None:
    additions = (Addition("a", ("outer_norm", None)), Addition("b", ("stem", "outer_norm")))
    twice = replace(topology("residual"), additions=additions, emitted=())
    assert twice.operand_tensors == {"outer_norm.output": "outer_norm", "stem.output": "stem"}


def test_operands_of_normalized_additions_are_float_by_default_unless_another_addition_has_them() -> None:
    additions = (Addition("a", ("outer_norm", None), normalized=True), Addition("b", ("stem", "outer_norm"), True))
    stream = replace(topology("residual"), additions=additions, emitted=())
    tensors = {"outer_norm.output", "stem.output"}
    assert stream.normalized_tensors == tensors
    assert not tensors & find_search_space(Spec(), stream).widths.keys()
    for bits in (4, 8):
        widths = find_search_space(Spec(residual_bits=bits), stream).widths
        assert {name: widths[name] for name in tensors} == dict.fromkeys(tensors, (bits,))
    shared = replace(stream, additions=(additions[0], replace(additions[1], normalized=False)))
    widths = find_search_space(Spec(), shared).widths
    assert {name: widths[name] for name in tensors} == dict.fromkeys(tensors, (8,))
    assert shared.normalized_tensors == frozenset()


def test_a_method_with_fixed_widths_prunes_nothing() -> None:
    choices = resolved("residual", {}, method="lsq", weight_bits=4, activation_bits=2, input_bits="learned")
    weights, inputs = ["stem", "inner", "outer", "head"], ["inner", "outer", "head"]
    assert choices.widths == {
        **{f"{name}.weight": (4,) for name in weights},
        "stem.input": (8,),
        **{f"{name}.input": (2,) for name in inputs},
        "outer_norm.output": (8,),
    }
    assert choices.prunable == frozenset()


def test_the_edges_of_a_method_are_the_first_and_the_last_layer() -> None:
    widths = resolved("residual", {}, method="lsq", weight_bits=4, activation_bits=4, edge_bits=8).widths
    assert {name for name, found in widths.items() if found == (8,)} == {
        "stem.weight", "stem.input", "head.weight", "head.input", "outer_norm.output",
    }  # fmt: skip
    in_float = resolved("residual", {}, method="lsq", edge_bits=32).widths
    assert in_float["stem.input"] == in_float["stem.weight"] == in_float["head.input"] == (32,)


def test_rules_hold_for_methods_too() -> None:
    rules = {"inner": {"bits": 4}, "head": {"skip": True}}
    widths = resolved("residual", rules, method="lsq").widths
    assert (widths["inner.weight"], widths["inner.input"], widths["head.weight"]) == ((4,), (4,), (32,))
    assert resolved("residual", {"*": {"max_bits": 8}}, method="dq").widths["inner.weight"] == (2, 4, 8)


def test_inputs_of_linear_layers_are_quantized_at_run_time() -> None:
    choices = resolved("residual", {}, activations="dynamic")
    assert choices.dynamic == {"head.input"}  # the others are read by convolutions
    assert choices.widths["head.input"] == (8,)
    assert choices.widths["inner.input"] == ALL
    assert choices.widths["head.weight"] == ALL
    assert resolved("residual", {}).dynamic == frozenset()
    assert resolved("residual", {"head": {"max_bits": 8}}, activations="dynamic").widths["head.input"] == (8,)


def test_run_time_has_8_bits_or_float() -> None:
    rule = {"head.input": {"bits": 32}}
    assert resolved("residual", rule, activations="dynamic").widths["head.input"] == (32,)
    with pytest.raises(ValueError, match=r"head.input has 8 bits by Spec\(activations='dynamic'\).* give it 4"):
        resolved("residual", {"head.input": {"bits": 4}}, activations="dynamic")
    with pytest.raises(ValueError, match=r"leave no width for head\.input"):
        resolved("residual", {"head.input": {"max_bits": 4}}, activations="dynamic")
    choices = resolved("residual", {"head": {"bits": 4}}, activations="dynamic")  # a layer's rule is about its weight
    assert (choices.widths["head.weight"], choices.widths["head.input"]) == ((4,), (8,))
    assert resolved("residual", {"head": {"skip": True}}, activations="dynamic").widths["head.input"] == (32,)


def test_weights_alone() -> None:
    choices = resolved("residual", {"head": {"bits": 4}}, activations="float", residual_bits=8, output_bits=8)
    assert {name: found for name, found in choices.widths.items() if not name.endswith(".weight")} == {
        f"{name}.input": (32,) for name in ("stem", "inner", "outer", "head")
    }
    assert (choices.widths["head.weight"], choices.widths["stem.weight"]) == ((4,), ALL)
    assert choices.prunable == {"stem", "inner", "outer"}
    with pytest.raises(ValueError, match=r"head.input has 32 bits by Spec\(activations='float'\).* give it 4"):
        resolved("residual", {"head.input": {"bits": 4}}, activations="float")
    grouped = resolved("residual", {"inner": {"prune": True}}, activations="float", prune=False, group_size=32)
    assert grouped.prunable == frozenset()


def test_rules_name_products_of_two_activations_and_their_operands() -> None:
    topology = trace(attention(), examples(), activation_products=True)
    rules = {"*": {"max_bits": 8}, "sdpa.scores": {"bits": 8}, "sdpa.value": {"min_bits": 4}}
    widths = find_search_space(Spec(rules=rules), topology).widths
    assert (widths["sdpa.query"], widths["sdpa.key"]) == ((8,), (8,))
    assert (widths["sdpa.probabilities"], widths["sdpa.value"]) == ((2, 4, 8), (4, 8))
    space = find_search_space(Spec(rules={"sdpa.*": {"skip": True}}), topology)
    assert {space.widths[f"sdpa.{name}"] for name in ("query", "key", "probabilities", "value")} == {(32,)}


def test_tables_are_quantized_where_activations_are_float() -> None:
    tables = trace(Words(), TOKENS)
    choices = find_search_space(Spec(activations="float", rules={"positions": {"bits": 8}}), tables)
    assert (choices.widths["words.weight"], choices.widths["positions.weight"]) == (ALL, (8,))
    assert choices.widths["head.input"] == (32,)
