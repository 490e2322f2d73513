"""Products that a module's own code computes, with quantizers attached."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import bayesbits as bb
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.weight_product import AttachedProduct, attached_products, find_layer
from tests.graph.networks import randomize
from tests.graph.products import KINDS, Functional, InputsFirst, Padded, Products, Standardized

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8).sin()
ALL = [(kind, index % 2 == 1) for index, kind in enumerate(KINDS)]


def attached(model: nn.Module, x: Tensor = X, bits: tuple[int, ...] = (2, 4, 8), **options) -> bb.Compressor:
    compressor = bb.attach(randomize(model).eval(), x, bb.Spec(bits=bits, **options))
    compressor.calibrate([x])
    return compressor


def test_a_product_computes_with_quantized_input_weight_and_bias():
    torch.manual_seed(0)
    compressor = attached(nn.Sequential(Standardized(3, 4, 3)), prune=False)
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8))
    (product,) = attached_products(compressor.model).values()
    parts, layer = product.parts, compressor.model[0]
    rows = layer.weight.reshape(1, 4, -1)
    weight = F.batch_norm(rows, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(layer.weight)
    step = parts.weight.step() * parts.input.step()
    bias = torch.round(layer.bias / step) * step
    torch.testing.assert_close(layer(X), F.conv2d(parts.input(X), parts.weight(weight), bias))
    assert not torch.allclose(layer(X), F.conv2d(X, weight, layer.bias), atol=1e-4)
    assert torch.equal(product.weight, weight)


def test_the_weight_of_a_matrix_product_is_read_by_outputs():
    compressor = attached(nn.Sequential(InputsFirst(8, 5)), X, per_channel_weights=True)
    product = find_layer(compressor.model, "0")
    assert isinstance(product, AttachedProduct)
    assert product.stored_weight is compressor.model[0].weight
    assert product.parts.weight.beta.shape == (5,)
    torch.testing.assert_close(
        product.parts.weight.beta, compressor.model[0].weight.abs().amax(dim=0) * 255 / 254, rtol=1e-4, atol=0
    )
    with torch.no_grad():
        product.weight.fill_(2.0)
    assert bool((compressor.model[0].weight == 2).all())


def test_only_the_traced_product_is_quantized_and_not_the_child_of_equal_shape():
    compressor = attached(nn.Sequential(Functional(3)))
    for name in ("0.first", "0.inner", "0.last"):
        layer = find_layer(compressor.model, name)
        calls = []
        handle = layer.parts.weight.register_forward_pre_hook(lambda _, args, calls=calls: calls.append(args[0]))
        compressor.model(X)
        handle.remove()
        owner = compressor.model[0]
        expected = owner.inner.weight if name == "0.inner" else getattr(owner, name.removeprefix("0."))
        assert [call.data_ptr() for call in calls] == [expected.data_ptr()]


def test_gradients_reach_weights_gates_and_ranges():
    compressor = attached(Products(ALL))
    compressor.model.train()
    compressor.model(X).square().sum().backward()
    learning = {name: one for name, one in compressor.model.named_parameters() if one.requires_grad}
    assert not [name for name, parameter in learning.items() if parameter.grad is None]
    assert {"stem.weight", "bayesbits.tensors./stem/weight.log_beta"} <= set(learning)


@pytest.mark.check
def test_a_compiled_network_with_products_of_every_kind_computes_the_same():
    torch._dynamo.reset()
    compressor = attached(Products(ALL), bits=(2, 8))  # few widths are traced in half the time
    expected = compressor.model(X)
    compiled = torch.compile(compressor.model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X), expected)


def test_copies_and_pickles_have_their_own_products():
    compressor = attached(Products([("padded", True), ("functional", False), ("standardized", True)]))
    expected = compressor.model(X)
    for other in (copy.deepcopy(compressor.model), pickle.loads(pickle.dumps(compressor.model))):
        assert torch.equal(other(X), expected)
        with torch.no_grad():
            other.stem.weight.zero_()
        assert not find_layer(other, "stem").weight.any()
        assert bool(find_layer(compressor.model, "stem").weight.any())


def test_a_parametrized_layer_can_be_copied():
    compressor = attached(nn.Sequential(weight_norm(nn.Linear(8, 4)), nn.ReLU(), nn.Linear(4, 2)))
    other = copy.deepcopy(compressor.model)
    assert torch.equal(other(X), compressor.model(X))
    assert find_layer(other, "0").weight is not find_layer(compressor.model, "0").weight


def test_detaching_gives_the_float_network_back():
    model = randomize(Products(ALL)).eval()
    before, keys, types = model(X), list(model.state_dict()), [type(module) for module in model.modules()]
    compressor = bb.attach(model, X)
    assert [key for key in model.state_dict() if not key.startswith("bayesbits.")] == keys
    compressor.calibrate([X])
    assert not torch.equal(model(X), before)
    compressor.detach()
    assert torch.equal(model(X), before)
    assert [type(module) for module in model.modules()] == types
    assert not any("bayesbits_products" in module.__dict__ for module in model.modules())


def test_a_state_dict_carries_over():
    one, other = attached(Products(ALL)), attached(randomize(Products(ALL), seed=1))
    other.model.load_state_dict(one.model.state_dict())
    assert torch.equal(other.model(X), one.model(X))


def test_a_forward_of_the_module_itself_is_kept():
    model = nn.Sequential(Padded(3, 4, 2))
    forward = model[0].forward
    model[0].forward = lambda x: 2 * forward(x)
    compressor = attached(model)
    assert torch.equal(find_layer(model, "0").weight, model[0].weight)
    close, plain = model(X), F.conv2d(F.pad(X, (0, 1, 0, 1)), model[0].weight, model[0].bias)
    assert (close - 2 * plain).norm() < 0.1 * close.norm()
    compressor.detach()
    torch.testing.assert_close(model(X), 2 * plain)


def test_a_skipped_product_computes_in_float():
    model = randomize(Products([("padded", False)])).eval()
    compressor = bb.attach(model, X, bb.Spec(rules={"matrix": {"skip": True}}))
    product = find_layer(model, "matrix")
    assert isinstance(product, AttachedLayer)
    assert (product.parts.weight, product.parts.input) == (None, None)
    assert torch.equal(product.weight, model.matrix.T)
    compressor.calibrate([X])
    seen: list[Tensor] = []
    product.register_forward_hook(lambda _, args, output: seen.append(output - args[0] @ model.matrix))
    model(X)
    assert not seen[0].any()


class Attention(nn.Module):
    """Attention of a tensor to itself, and of the result to the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.own(x, x, x)[0]
        return self.cross(y, x, x, need_weights=False)[0]


def test_the_projections_of_attention_are_quantized():
    model, x = randomize(Attention()).eval(), torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=r"of the MACs stay in float .* own \(attention product"):
        compressor = bb.attach(model, x, bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([x])
    names = ["own.in_proj_weight", "own.out_proj", "cross.in_proj_weight", "cross.in_proj_weight#2", "cross.out_proj"]
    assert [layer.name for layer in compressor.topology.layers] == names
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    expected = model(x)
    with torch.no_grad():  # torch's fused attention would read the weights without what is attached
        torch.testing.assert_close(model(x), expected)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), expected)
    for name in names:
        product = find_layer(model, name)
        product.set_constants(torch.zeros_like(product.weight), product.bias)
        assert not torch.allclose(model(x), expected, rtol=0.01)
