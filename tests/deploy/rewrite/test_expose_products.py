"""Products of two activations become modules of the deployed network, and attention is written out around them."""

import pytest
import torch

import bayesbits as bb
from bayesbits.deploy.modules import PRODUCTS
from bayesbits.graph.exported_program import operation
from tests.graph.attention import KINDS, attention, examples


def deployed(kind="sdpa", bits=8, changes=None):
    inputs = examples()
    compressor = bb.attach(attention(kind), inputs[:1], bb.Spec(activation_products=True))
    compressor.calibrate([inputs])
    plan = bb.Plan.uniform(compressor.topology, bits, bits)
    compressor.fix(bb.Plan({**plan.bits, **(changes or {})}))
    return compressor, bb.deploy(compressor)


def nodes(small):
    return [operation(node) for node in small.program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_deployed_network_computes_with_codes_what_was_trained(kind, bits):
    compressor, small = deployed(kind, bits)
    assert [product.arithmetic for product in small.integer.products] == ["integer", "integer"]
    inputs = examples(4)
    with torch.no_grad():
        torch.testing.assert_close(small(inputs), compressor.model(inputs), rtol=1e-5, atol=1e-6)
    assert "scaled_dot_product_attention" not in nodes(small)
    assert small.macs == compressor.topology.macs
    called = [str(node.target) for node in small.program.graph.nodes if node.op == "call_module"]
    assert sum(target.startswith(f"{PRODUCTS}.") for target in called) == 2


def test_the_product_in_front_of_a_layer_emits_its_codes():
    _, small = deployed()
    scores, context = small.integer.products
    assert (scores.output, context.output) == (None, "proj.input")
    assert (context.left, context.right) == ("sdpa.probabilities", "sdpa.value")
    assert "u8 x a8" in str(small)


def test_attention_without_a_quantized_operand_stays_one_operation():
    operands, inputs = ("query", "key", "probabilities", "value"), examples()
    rules = {"sdpa.*": {"skip": True}}
    compressor = bb.attach(attention(), inputs, bb.Spec(activation_products=True, rules=rules))
    compressor.calibrate([inputs])
    plan = bb.Plan.uniform(compressor.topology, 8, 8)
    compressor.fix(bb.Plan({**plan.bits, **{f"sdpa.{name}": 32 for name in operands}}))
    small = bb.deploy(compressor)
    assert "scaled_dot_product_attention" in nodes(small)
    assert small.integer.products == ()
    assert small.macs == compressor.topology.macs


def test_a_wide_operand_makes_the_product_float_with_the_reason():
    compressor, small = deployed(changes={"sdpa.value": 16})
    assert [product.arithmetic for product in small.integer.products] == ["integer", "float"]
    assert "sdpa.context computes in float: its second operand has 16 bits" in small.integer.notes
    inputs = examples(4)
    with torch.no_grad():
        torch.testing.assert_close(small(inputs), compressor.model(inputs), rtol=1e-5, atol=1e-6)


def test_a_stored_network_computes_the_same(tmp_path):
    _, small = deployed("einsum", 4)
    bb.save(small, tmp_path)
    inputs = examples(2)
    for again in (bb.load(tmp_path), bb.load(tmp_path, attention("einsum"))):
        assert torch.equal(again(inputs), small(inputs))
        assert again.integer.products == small.integer.products
