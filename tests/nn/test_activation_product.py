"""The attached product of two activations: the same numbers in float, quantized operands, and the same calls found."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesbits as bb
from bayesbits.nn import GatedQuantizer
from bayesbits.nn.activation_product import ActivationProduct, OperandQuantizers
from bayesbits.nn.weight_product import attached_activation_products
from tests.graph.attention import KINDS, attention, examples


def attached(model, inputs, **options):
    compressor = bb.attach(model, inputs, bb.Spec(activation_products=True, **options))
    compressor.calibrate([inputs])
    return compressor


def turned_off(compressor):
    for quantizer in compressor.attachment.quantizers.values():
        quantizer.turn_off()
    return compressor


@pytest.mark.parametrize("kind", KINDS)
def test_without_quantization_it_is_the_float_network(kind):
    inputs = examples()
    expected = attention(kind)(inputs)
    compressor = turned_off(attached(attention(kind), inputs))
    torch.testing.assert_close(compressor.model(inputs), expected)
    torch.testing.assert_close(compressor.detach()(inputs), expected, rtol=0, atol=0)


def test_both_operands_are_quantized():
    left, right = GatedQuantizer(signed=True, beta=1.0, bits=(2,)), GatedQuantizer(signed=False, beta=3.0, bits=(2,))
    for quantizer in (left, right):
        quantizer.fix(2)
    product = ActivationProduct("product", OperandQuantizers(left, right))
    found = product(torch.tensor([[0.9, -0.2]]), torch.tensor([[1.4], [-5.0]]))
    torch.testing.assert_close(found, torch.tensor([[2 / 3 * 1.0 + 0.0 * 0.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_width_of_every_operand_changes_the_output(kind):
    inputs = examples()
    compressor = attached(attention(kind), inputs)
    plan = bb.Plan.uniform(compressor.topology, 32, 32, 32, None)
    compressor.fix(plan)
    before = compressor.model(inputs)
    for product in compressor.topology.products:
        for tensor in (product.left, product.right):
            compressor.fix(bb.Plan({**plan.bits, tensor: 2}))
            assert not torch.allclose(compressor.model(inputs), before, atol=1e-3), tensor


def test_gates_and_ranges_of_operands_learn_and_those_of_softmax_keep_their_range():
    inputs = examples()
    compressor = attached(attention(), inputs, bits=(2, 4))
    compressor.model.train()
    (compressor.model(inputs).square().mean() + compressor.penalty()).backward()
    quantizers = compressor.attachment.quantizers
    for name in ("sdpa.query", "sdpa.key", "sdpa.probabilities", "sdpa.value"):
        assert quantizers[name].gates.logits.grad.abs().sum() > 0, name
    assert quantizers["sdpa.query"].log_beta.grad.abs() > 0
    assert quantizers["sdpa.probabilities"].log_beta.grad is None
    assert (quantizers["sdpa.probabilities"].beta.item(), quantizers["sdpa.probabilities"].kind) == (1.0, "unsigned")


class Nested(nn.Module):
    """A product of its own in front of and behind a module with others: calls of all of them are counted."""

    def __init__(self, kind):
        super().__init__()
        self.inner = attention(kind)
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        x = self.layer(x)
        x = x + torch.einsum("bij,bkj->bik", x, x) @ x
        x = self.inner(x)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return x + torch.einsum("bij,bkj->bik", x, x) @ x


@pytest.mark.parametrize("kind", ["sdpa", "matmul", "einsum", "baddbmm"])
@pytest.mark.parametrize("skipped", [None, "inner.*", "einsum*"])
def test_products_of_nested_modules_are_told_apart(kind, skipped):
    inputs = examples() / 4
    model = Nested(kind).eval()
    expected = model(inputs)
    rules = {} if skipped is None else {skipped: {"skip": True}}
    compressor = attached(model, inputs, rules=rules)
    seen = {}
    for name, product in attached_activation_products(compressor.model).items():
        product.register_forward_pre_hook(lambda _, operands, name=name: seen.update({name: operands[0].shape}))
    torch.testing.assert_close(turned_off(compressor).model(inputs), expected)
    if skipped is None:
        assert set(seen) == {product.name for product in compressor.topology.products}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_quantizers_of_its_own(copied):
    inputs = examples()
    compressor = attached(attention(), inputs)
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
    twin = copied(compressor.model)
    torch.testing.assert_close(twin(inputs), compressor.model(inputs))
    for quantizer in twin.bayesbits.quantizers.values():
        quantizer.turn_off()
    assert not torch.allclose(twin(inputs), compressor.model(inputs))


def test_code_behind_attention_may_view_its_heads_as_one_axis():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            heads = self.layer(x).view(x.shape[0], 5, 2, 4).transpose(1, 2)
            return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).view(x.shape[0], 5, 8)

    model, inputs = Views().eval(), examples()
    expected = model(inputs)
    torch.testing.assert_close(turned_off(attached(model, inputs)).model(inputs), expected)


def test_under_autocast_products_run_in_half_precision():
    inputs = examples()
    compressor = attached(attention(), inputs)
    seen = []
    for product in attached_activation_products(compressor.model).values():
        product.register_forward_hook(lambda _, operands, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compressor.model(inputs)
    assert seen == [torch.bfloat16] * 2


@pytest.mark.parametrize("kind", ["sdpa", "einsum"])
def test_a_compiled_network_computes_the_same(kind):
    inputs = examples()
    compressor = attached(attention(kind), inputs, bits=(4, 8))
    expected = compressor.model(inputs)
    compiled = torch.compile(compressor.model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(inputs), expected)
