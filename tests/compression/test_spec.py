"""Options are checked when they are given, and the error names the option and what is allowed."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesbits.compression.spec import Rule, Spec


def test_the_default_is_the_papers_search_space() -> None:
    spec = Spec()
    assert spec.bits == (2, 4, 8, 16, 32)
    assert (spec.prune, spec.gates, spec.penalty) == (True, "hard_concrete", "paper")
    assert (spec.input_bits, spec.residual_bits, spec.output_bits) == (8, "auto", None)
    assert (spec.per_channel_weights, spec.channel_multiple, spec.rules) == (False, 1, {})
    assert spec.asymmetric_activations
    assert Spec.for_backend("onnxruntime").asymmetric_activations
    assert not Spec.paper().asymmetric_activations, "the paper's ranges are symmetric"


def test_presets() -> None:
    assert Spec.paper() == Spec(residual_bits=None, asymmetric_activations=False)
    assert Spec.for_backend("onnxruntime") == Spec(
        bits=(2, 4, 8), residual_bits="auto", output_bits=8, channel_multiple=8, per_channel_weights=True
    )
    openvino, tensorrt = Spec.for_backend("openvino"), Spec.for_backend("tensorrt")
    assert openvino == replace(Spec.for_backend("onnxruntime"), output_bits=None)
    assert tensorrt == replace(openvino, asymmetric_activations=False, unsigned_activations=False)
    with pytest.raises(ValueError, match=r"backend is 'abacus'; it is one of onnxruntime, openvino, tensorrt"):
        Spec.for_backend("abacus")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": ()}, r"Spec.bits is \(\); it is a tuple of widths"),
        ({"bits": 8}, r"Spec.bits is 8; it is a tuple"),
        ({"bits": (4, 2)}, r"Spec.bits is \(4, 2\); the widths increase"),
        ({"bits": (4, 4)}, r"the widths increase, each given once"),
        ({"bits": (1, 2)}, r"a width in Spec.bits is 1; it is an integer from 2 to 32"),
        ({"bits": (2.0, 4)}, r"a width in Spec.bits is 2.0"),
        ({"prune": 1}, r"Spec.prune is 1; it is True or False"),
        ({"gates": "soft"}, r"Spec.gates is 'soft'; it is one of hard_concrete, hard_sigmoid, sigmoid"),
        (
            {"penalty": "l1"},
            r"Spec.penalty is 'l1'; it is one of paper, expected_bops, expected_bytes, expected_latency",
        ),
        ({"penalty": "expected-bops"}, r"did you mean 'expected_bops'\?"),
        ({"penalty": "variational"}, r"Spec.num_examples is None; the variational penalty needs the number"),
        ({"penalty": "variational", "num_examples": 0}, r"Spec.num_examples is 0; it is an integer of at least 1"),
        ({"num_examples": "many"}, r"Spec.num_examples is 'many'"),
        ({"input_bits": 33}, r"Spec.input_bits is 33; it is an integer from 2 to 32"),
        ({"input_bits": True}, r"Spec.input_bits is True"),
        ({"input_bits": "free"}, r"Spec.input_bits is 'free'; it is an integer from 2 to 32 or \"learned\""),
        (
            {"residual_bits": "fixed"},
            r"Spec.residual_bits is 'fixed'; it is an integer.*, \"auto\", \"learned\" or None",
        ),
        ({"residual_bits": 1}, r"Spec.residual_bits is 1"),
        ({"per_channel_weights": None}, r"Spec.per_channel_weights is None"),
        ({"asymmetric_activations": 1}, r"Spec.asymmetric_activations is 1"),
        ({"unsigned_activations": 0}, r"Spec.unsigned_activations is 0"),
        ({"unsigned_activations": False}, r"asymmetric_activations True: without unsigned ranges all are symmetric"),
        ({"channel_multiple": 0}, r"Spec.channel_multiple is 0; it is an integer of at least 1"),
        ({"method": "lsqq"}, r"Spec.method is 'lsqq'; it is one of bayesian_bits, .*; did you mean 'lsq'\?"),
        ({"method": "lsq", "weight_bits": 1}, r"Spec.weight_bits is 1; it is an integer from 2 to 32 or None"),
        ({"weight_bits": 4}, r"Spec.weight_bits is 4 and Spec.method is 'bayesian_bits', which learns the widths"),
        ({"method": "dq", "activation_bits": 4}, r"Spec.activation_bits is 4 and Spec.method is 'dq', which learns"),
        ({"edge_bits": 8}, r"Spec.edge_bits is 8 and Spec.method is 'bayesian_bits', whose gates decide"),
        ({"method": "lsq", "edge_bits": 0}, r"Spec.edge_bits is 0"),
        ({"rules": []}, r"Spec.rules is a list"),
        ({"rules": {3: {}}}, r"the pattern 3; patterns are strings"),
        ({"rules": {"fc": {"bit": 4}}}, r"Spec.rules\['fc'\] is \{'bit': 4\}; .* keys of bits, min_bits, max_bits"),
        ({"rules": {"fc": 4}}, r"Spec.rules\['fc'\] is 4"),
        ({"rules": {"fc": {"bits": 64}}}, r"Spec.rules\['fc'\]: Rule.bits is 64; it is an integer from 2 to 32"),
        ({"rules": {"fc": {"bits": 4, "min_bits": 2}}}, r"Rule.bits fixes the width at 4; give no min_bits"),
        ({"rules": {"fc": {"min_bits": 8, "max_bits": 4}}}, r"Rule.min_bits is 8, more than Rule.max_bits, which is 4"),
        ({"rules": {"fc": {"skip": True, "bits": 4}}}, r"Rule.skip leaves a layer in float"),
        ({"rules": {"fc": {"skip": True, "prune": False}}}, r"Rule.skip leaves a layer in float"),
        ({"rules": {"fc": {"skip": 1}}}, r"Rule.skip is 1"),
        ({"rules": {"fc": {"prune": "never"}}}, r"Rule.prune is 'never'"),
    ],
)
def test_errors_name_the_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Spec(**options)


@given(st.sets(st.integers(2, 32), min_size=1), st.integers(2, 32), st.sampled_from([None, "learned", 2, 8, 32]))
def test_every_increasing_set_of_widths_is_allowed(widths: set[int], input_bits: int, residual_bits: Any) -> None:
    spec = Spec(bits=sorted(widths), input_bits=input_bits, residual_bits=residual_bits)  # type: ignore[arg-type]
    assert spec.bits == tuple(sorted(widths))
    assert spec == copy.deepcopy(spec) == pickle.loads(pickle.dumps(spec))


def test_rules_may_be_dicts() -> None:
    rules: dict[str, Any] = {"fc": {"bits": 4}, "conv*": Rule(prune=False)}
    spec = Spec(rules=rules)
    assert spec.rules == {"fc": Rule(bits=4), "conv*": Rule(prune=False)}
    rules["fc"] = None
    assert spec.rules["fc"] == Rule(bits=4)


def test_widths_of_a_method_are_its_defaults_or_what_is_given() -> None:
    assert Spec().fixed_widths is None
    assert Spec(method="dq").fixed_widths is None
    assert Spec(method="lsq").fixed_widths == (8, 8)
    assert Spec(method="wage").fixed_widths == (2, 8)
    assert Spec(method="twn", activation_bits=8).fixed_widths == (2, 8)
    assert Spec(method="pact", weight_bits=2).fixed_widths == (2, 4)


def test_activations_at_run_time() -> None:
    spec = Spec.for_backend("onnxruntime", activations="dynamic")
    assert (spec.activations, spec.residual_bits, spec.output_bits) == ("dynamic", None, 8)
    assert (spec.bits, spec.per_channel_weights, spec.channel_multiple) == ((2, 4, 8), True, 8)
    assert Spec().activations == Spec.for_backend("onnxruntime").activations == "static"
    with pytest.raises(ValueError, match="activations is 'sometimes'"):
        Spec(activations="sometimes")
    with pytest.raises(ValueError, match=r"activation_bits is 4 and Spec.activations is 'dynamic'"):
        Spec(method="lsq", activation_bits=4, activations="dynamic")


def test_products_are_not_quantized_beside_float_activations() -> None:
    with pytest.raises(ValueError, match=r"activation_products is True and Spec.activations is 'float'"):
        Spec(activations="float", activation_products=True)
    assert Spec(activations="dynamic", activation_products=True).activation_products


def test_weights_alone_in_groups() -> None:
    spec = Spec.for_backend("onnxruntime", activations="float")
    assert (spec.group_size, spec.prune, spec.residual_bits) == (32, False, None)
    assert Spec(activations="float").group_size is None
    with pytest.raises(ValueError, match=r"group_size is 48; it is None or one of \(16, 32"):
        Spec(activations="float", prune=False, group_size=48)
    for options, name in (
        ({"prune": False}, "activations is 'static'"),
        ({"activations": "float"}, "prune is True"),
        ({"activations": "float", "prune": False, "method": "lsq"}, "method is 'lsq'"),
    ):
        with pytest.raises(ValueError, match=f"group_size is 32 and Spec.{name}"):
            Spec(group_size=32, **options)
