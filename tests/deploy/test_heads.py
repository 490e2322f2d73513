"""Attention heads that are removed: the deployed network is the one whose heads are closed, and as small as counted."""

import random

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from tests.deploy.comparison import check_equal
from tests.deploy.networks import compress
from tests.graph.heads import FORMS, POSITIONS, WIDTH, heads, inputs


def attached(model: nn.Module, x: Tensor, seed: int, *, products: bool, drop: float = 0.5) -> bb.Compressor:
    spec = bb.Spec(bits=(2, 4, 8), activation_products=products)
    return compress(model, x, spec, seed=seed, drop=drop)


@pytest.mark.parametrize(("form", "products"), [(form, number % 2 == 1) for number, form in enumerate(FORMS)])
def test_random_heads_closed(form, products):
    choose = random.Random(f"{form} {products}")
    keys, size = choose.choice((2, 3)), choose.choice((2, 4))
    options = {"rotary": choose.random() < 0.5, "biased": choose.random() < 0.5}
    model = heads(form, heads=2 * keys, size=size, keys=keys, **options)
    compressor = attached(model, inputs(), choose.randrange(100), products=products, drop=0.67)
    left = keys - int(keys * 0.67)
    assert compressor.plan().kept.keys() == {"value"}
    assert compressor.cost().layers[2].kept_out == left * size
    small = bb.deploy(compressor)
    shapes = {layer.name: layer.weight_shape for layer in small.integer.layers}
    assert shapes == {
        "query": (2 * left * size, WIDTH),
        "key": (left * size, WIDTH),
        "value": (left * size, WIDTH),
        "out": (3, 2 * left * size),
    }
    cost = compressor.cost()
    assert (small.parameter_count, small.macs) == (cost.parameters, cost.macs)
    scores = 2 * 3 * 2 * left * POSITIONS * POSITIONS * size
    assert small.macs == scores + sum(layer.macs for layer in small.integer.layers)
    check_equal(compressor, small, inputs())


def test_a_closed_head_is_one_whose_values_are_zero():
    model, x = heads(rotary=True), inputs()
    compressor = bb.attach(model, x, bb.Spec(bits=(32,), input_bits=32, residual_bits=None))
    compressor.calibrate([x])
    (group,) = compressor.topology.removable_groups
    plan = bb.Plan.uniform(compressor.topology, 32, 32, 32, residual_bits=None)
    compressor.fix(plan.without(compressor.topology, {group.channels[1], group.channels[2]}))
    silent = heads(rotary=True)
    for parameter in (silent.value.weight, silent.value.bias):
        parameter.data[4:12] = 0
    with torch.no_grad():
        expected = silent(x)
        torch.testing.assert_close(compressor.model(x), expected)
        torch.testing.assert_close(bb.deploy(compressor)(x), expected)


@pytest.mark.check
@pytest.mark.parametrize("products", [False, True])
def test_exported_and_verified_for_other_batches(products, tmp_path):
    """Heads and batch lie in one size for a while; the batch stays dynamic."""
    compressor = attached(heads("merged", biased=True), inputs(), 3, products=products)
    small = bb.deploy(compressor)
    assert [size.name for size in small.integer.structure.sizes] == ["batch"]
    bb.export_onnx(small, inputs(), tmp_path / "heads.onnx")
    bb.verify(compressor, small, tmp_path / "heads.onnx", inputs(7))
    bb.save(small, tmp_path / "heads")
    with torch.no_grad():
        assert torch.equal(bb.load(tmp_path / "heads")(inputs(2)), small(inputs(2)))
        assert torch.equal(bb.load(tmp_path / "heads", model=heads("merged", biased=True))(inputs(2)), small(inputs(2)))


@pytest.mark.check
def test_a_removed_head_that_matters_is_found(tmp_path):
    """The verification compares with the network whose heads are closed: another head removed is another network."""
    compressors = [attached(heads(), inputs(), 3, products=True, drop=0.0) for _ in range(2)]
    (group,) = compressors[0].topology.removable_groups
    for compressor, head in zip(compressors, group.channels, strict=False):
        compressor.fix(compressor.plan().without(compressor.topology, {head}))
    small = bb.deploy(compressors[0])
    bb.export_onnx(small, inputs(), tmp_path / "heads.onnx")
    bb.verify(compressors[0], small, tmp_path / "heads.onnx", inputs())
    with pytest.raises(bb.VerificationError):
        bb.verify(compressors[1], small, tmp_path / "heads.onnx", inputs())


class Encoder(nn.Module):
    """torch's own attention, whose heads share a size with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 4, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0])


def test_torchs_attention_loses_heads_and_keeps_its_dynamic_sizes():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    compressor = attached(Encoder().eval(), x, 0, products=False)
    small = bb.deploy(compressor)
    assert small.integer.layer("attention.in_proj_weight").weight_shape == (12, 8)
    assert [size.name for size in small.integer.structure.sizes] == ["batch", "length"]
    assert "index_select" not in str(small.program.graph)
    with torch.no_grad():
        longer = torch.randn(3, 9, 8)
        torch.testing.assert_close(small(longer), compressor.model(longer), rtol=1e-4, atol=1e-5)
