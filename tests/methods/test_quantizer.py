"""The conformance suite: what every quantizer does, ours and every other method's."""

import copy
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesbits as bb
from bayesbits.methods import METHODS, MethodQuantizer
from bayesbits.methods.quantizer import bounded, ceil_through, round_through, scale_gradient
from bayesbits.training import OptimizerConfig
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.step import TrainingStep
from tests.methods.quantizers import ACTIVATION, EVERY, IMAGES, LABELS, WEIGHT, make, network, values

every_quantizer = pytest.mark.parametrize(("name", "weight"), EVERY)
every_method = pytest.mark.parametrize("name", METHODS)


def is_random(name, weight):
    """Whether the codes of a weight are drawn from parameters, and are no function of the weight."""
    return weight and name in ("lrnet", "lrnet_binary")


TERNARY = ("twn", "lrnet", "lrnet_binary")


def is_ternary(name, weight):
    """Whether a weight has no other width than 2 bits."""
    return weight and name in TERNARY


OWN_RANGES = {
    "lsq": ("sgd", 1e-2, 0.9), "tqt": ("adam", 1e-2, 0.9),
    "lrnet": ("adam", 1e-2, 0.9), "lrnet_binary": ("adam", 1e-2, 0.9),
}  # fmt: skip


@every_method
def test_the_optimizer_of_the_ranges_is_the_one_that_the_paper_needs(name):
    """LSQ's gradient scale does nothing to Adam, and thresholds and logits that learn at 1e-3 hardly move."""
    assert set(OWN_RANGES) <= set(METHODS)
    ranges = METHODS[name].ranges
    if name not in OWN_RANGES:
        assert not ranges
        return
    config = OptimizerConfig(**ranges)
    assert (config.optimizer, config.lr, config.momentum) == OWN_RANGES[name]


DEPLOYED = [(name, weight) for name, weight in EVERY if not getattr(make(name, weight), "not_deployable", "")]


@every_quantizer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_shape_dtype_and_strides_are_those_of_the_input(name, weight, dtype, training):
    quantizer = make(name, weight).train(training)
    for x in (
        values(weight),
        values(weight).to(memory_format=torch.channels_last),
        values(weight, (6, 5, 4, 3)).transpose(1, 2),
    ):
        given = x.to(dtype)
        result = quantizer(given)
        assert (result.shape, result.dtype) == (given.shape, dtype)
        dense = given.is_contiguous() or given.is_contiguous(memory_format=torch.channels_last)
        assert not dense or result.stride() == given.stride()
        assert quantizer(given, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize(("name", "weight"), DEPLOYED)
def test_evaluation_emits_grid_points_and_codes_says_which(name, weight):
    quantizer = make(name, weight).eval()
    x = 3 * values(weight)
    emitted, step = quantizer(x), quantizer.step()
    codes = emitted / step
    low, high = quantizer.code_bounds()
    torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-3)
    assert low <= codes.round().min()
    assert codes.round().max() <= high
    assert codes.round().unique().numel() > 1
    assert torch.equal(quantizer.codes(x), codes.round().int())
    assert torch.equal(quantizer(x), emitted)


@pytest.mark.parametrize(("name", "weight"), [one for one in EVERY if not is_random(*one)])
def test_a_stretched_range_stretches_the_grid_of_each_row(name, weight):
    quantizer = make(name, weight).eval()
    x, stretch = values(weight), torch.tensor([1.0, 2.0, 0.5, 1.0, 4.0, 1.0])
    wide = stretch.reshape(-1, 1, 1, 1)
    if weight and name in ("qt", "twn"):  # whose range is that of the whole weight, however its rows are stretched
        emitted = quantizer(x * wide, stretch)
        assert quantizer.step().item() == pytest.approx((quantizer(x * wide), quantizer.step())[1].item())
        torch.testing.assert_close(emitted, quantizer.quantize(x) * wide)
    else:
        torch.testing.assert_close(quantizer(x * wide, stretch), quantizer(x) * wide)


@every_quantizer
def test_gradients_reach_all_that_learns(name, weight):
    quantizer = make(name, weight)
    quantizer.gates.logits.data.fill_(0.0)  # no gate is certain
    x = (1.5 * values(weight)).requires_grad_()
    (quantizer(x) * torch.linspace(-1, 2, x.numel()).reshape(x.shape)).sum().backward()
    learning = [p for p in quantizer.range_parameters() if p.requires_grad]
    if METHODS[name].gates is None:  # the gradient of other gates comes from the loss itself
        learning += [p for p in quantizer.width_parameters() if p.requires_grad]
    for parameter in learning:
        assert parameter.grad is not None
        assert bool(torch.isfinite(parameter.grad).all())
        assert bool((parameter.grad != 0).any())
    if not is_random(name, weight):
        assert x.grad is not None
        assert bool(torch.isfinite(x.grad).all())
        assert bool((x.grad != 0).any())


LEARNED = [(name, weight) for name, weight in EVERY if getattr(make(name, weight), "learns_width", False)]


@pytest.mark.parametrize(("name", "weight"), LEARNED)
def test_a_learned_width_starts_at_8_bits(name, weight):
    method = METHODS[name]
    made = (method.weights if weight else method.activations)(weight=weight, bits=(2, 4, 8, 16, 32))
    assert made.effective_bits() == 8


@pytest.mark.parametrize("narrower", [0.4, 1.3, 3.8])
@pytest.mark.parametrize(("name", "weight"), LEARNED)
def test_what_was_learned_is_what_is_fixed(name, weight, narrower):
    """Wherever a width has come to rest, evaluation emits the same numbers before and after it is fixed."""
    quantizer, x = make(name, weight).eval(), 3 * values(weight)
    with torch.no_grad():
        for parameter in quantizer.width_parameters():
            parameter.add_(narrower if name.startswith("dq") else -narrower)  # log2 of a step, or a width
    before, bits, step = quantizer(x), quantizer.effective_bits(), quantizer.step().item()
    assert narrower < 1 or quantizer.expected_bits() < 8
    quantizer.fix()
    assert (quantizer.effective_bits(), quantizer.step().item()) == (bits, pytest.approx(step, rel=1e-5))
    torch.testing.assert_close(quantizer(x), before)


@every_quantizer
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_range_that_is_set_is_the_one_that_it_has(name, weight, bits):
    quantizer = make(name, weight, 2 if is_ternary(name, weight) else bits)
    quantizer.fix(None if is_ternary(name, weight) else bits)
    for beta in (quantizer.beta.item(), 0.9, 4.3):
        quantizer.set_range(beta, signed=weight)
        found = quantizer.beta.item()
        if name in ("tqt", "wage"):  # powers of two
            assert 0.25 * beta < found < 4 * beta
        else:
            assert found == pytest.approx(beta, rel=1e-5)
        quantizer.set_range(found, signed=weight)
        assert quantizer.beta.item() == pytest.approx(found, rel=1e-5)


FIXED = [(name, weight) for name, weight in EVERY if (name, weight) not in LEARNED and METHODS[name].widths is not None]


@pytest.mark.parametrize(("name", "weight"), [one for one in FIXED if not is_ternary(*one)])
def test_a_width_in_the_place_of_another_fixed_one_keeps_the_range(name, weight):
    quantizer = make(name, weight, 8)
    quantizer.fix(8)
    last = quantizer.code_bounds()[1] * quantizer.step().item()
    quantizer.fix(4)
    assert quantizer.code_bounds()[1] * quantizer.step().item() == pytest.approx(last, rel=0.15)
    step = quantizer.step().item()
    quantizer.turn_off()
    quantizer.fix(4)
    assert quantizer.step().item() == step


@pytest.mark.parametrize(("name", "weight"), [one for one in FIXED if not is_ternary(*one)])
def test_also_by_way_of_no_bits_or_of_none_at_all(name, weight):
    for way in ("none", "off", "learned"):
        quantizer = make(name, weight, 8)
        quantizer.fix(8)
        beta = quantizer.beta.item()
        if way == "learned":
            quantizer.fix(4)
            quantizer.learn()
            quantizer.turn_off()
        elif way == "none":
            quantizer.fix(0)
        else:
            quantizer.turn_off()
        quantizer.fix(4)
        assert quantizer.code_bounds() in ((-7, 7), (0, 15))
        assert quantizer.beta.item() == pytest.approx(beta, rel=0.15)  # of powers of two, and of WAGE, the last code


def test_the_threshold_of_powers_of_two_stays_as_it_has_learned():
    quantizer = make("tqt", WEIGHT, 8)
    quantizer.log2_threshold.data.fill_(-0.737)
    quantizer.fix(4)
    assert quantizer.log2_threshold.item() == pytest.approx(-0.737)


@pytest.mark.parametrize("name", ["dq", "dq_restricted"])
def test_a_width_comes_back_from_no_bits(name):
    quantizer = make(name, WEIGHT)
    quantizer.fix(8)
    beta = quantizer.beta.item()
    quantizer.fix(0)
    quantizer.fix(8)
    assert quantizer.beta.item() == pytest.approx(beta)


@every_method
def test_a_batch_without_examples_passes(name):
    quantizer = make(name, ACTIVATION)
    x = torch.zeros(0, 4, 5, 3, requires_grad=True)
    y = quantizer(x)
    y.sum().backward()
    assert y.shape == x.shape == x.grad.shape
    assert quantizer.beta.isfinite().all()


@pytest.mark.parametrize("name", TERNARY)
def test_ternary_weights_have_no_other_width(name):
    spec = bb.Spec(method=name, edge_bits=8, rules={"7.weight": bb.Rule(4)})
    compressor = bb.attach(network(), IMAGES[:1], spec)
    compressor.calibrate([IMAGES])
    emitted = {n: compressor.attachment.quantizers[f"{n}.weight"].eval()(compressor.model[n].weight) for n in (0, 3, 7)}
    distinct = {n: values.unique().numel() for n, values in emitted.items()}
    assert distinct[0] > 15
    assert distinct[3] <= 3
    assert 3 < distinct[7] <= 15
    with pytest.raises(ValueError, match=rf"Spec.weight_bits is 4 and Spec.method is '{name}', whose weights have 2"):
        bb.Spec(method=name, weight_bits=4)
    plan = compressor.plan()
    with pytest.raises(ValueError, match=r"3\.weight has a method whose grid has 2 bits, and cannot have 4"):
        compressor.fix(bb.Plan({**plan.bits, "3.weight": 4}, plan.kept))
    compressor.attachment.quantizers["3.weight"].check_width(0)
    assert bb.Spec(method=name, weight_bits=32).weight_bits == 32  # the weights stay in float
    learning = compressor.attachment.quantizers["7.weight"].learned_range_parameters()
    assert [parameter.requires_grad for parameter in learning] == [True]  # as every range of Bayesian Bits
    compressor.fix()
    assert compressor.plan().bits["7.weight"] == 4


@pytest.mark.parametrize("name", list(dict.fromkeys(name for name, _ in LEARNED)))
@pytest.mark.parametrize(
    ("rule", "start", "narrowest"), [({"min_bits": 16}, 16, 16), ({"max_bits": 4}, 4, 2), ({}, 8, 2)]
)
def test_a_rule_limits_where_a_learned_width_starts_and_ends(name, rule, start, narrowest):
    rules = {"*": bb.Rule(**rule)} if rule else {}
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method=name, rules=rules))
    compressor.calibrate([IMAGES])
    assert compressor.plan().bits["3.weight"] == start
    optimizer = torch.optim.Adam(compressor.parameter_groups()[1]["params"], lr=0.5)
    for _ in range(80):
        optimizer.zero_grad()
        compressor.penalty().backward()
        optimizer.step()
    assert compressor.plan().bits["3.weight"] == compressor.plan().bits["7.input"] == narrowest


@pytest.mark.parametrize(("name", "weight"), LEARNED)
def test_a_learned_width_comes_back_from_its_bounds(name, weight):
    """Up as far as it goes, down, and up again: a clamp alone would keep it at the first bound for good."""
    quantizer = make(name, weight)
    optimizer = torch.optim.Adam(quantizer.width_parameters(), 0.2)
    for direction, end in ((-1, 8), (1, 2), (-1, 8)):
        for _ in range(60):
            optimizer.zero_grad()
            (direction * quantizer.expected_bits()).backward()
            optimizer.step()
        assert quantizer.effective_bits() == end


def test_bounds_let_gradients_lead_inside_and_none_outside():
    x, low, high = (torch.tensor(values, requires_grad=True) for values in ([1.0, 1.0, 3.0, 9.0, 9.0], 2.0, 8.0))
    y = bounded(x, low, high)
    assert y.tolist() == [2.0, 2.0, 3.0, 8.0, 8.0]
    y.backward(torch.tensor([5.0, -6.0, 7.0, 1.0, -2.0]))  # descent moves against them
    assert x.grad.tolist() == [0.0, -6.0, 7.0, 1.0, 0.0]
    assert (low.grad.item(), high.grad.item()) == (5.0 - 6.0, 1.0 - 2.0)


@every_quantizer
def test_a_state_dict_and_a_copy_are_the_same_quantizer(name, weight):
    quantizer, other = make(name, weight), make(name, weight)
    with torch.no_grad():
        for parameter in quantizer.parameters():
            parameter.add_(0.1)
    quantizer.set_kind("symmetric")
    copied = copy.deepcopy(quantizer)
    other.load_state_dict(quantizer.state_dict())
    x = values(WEIGHT)
    for one in (other, copied):
        assert torch.equal(one.eval()(x), quantizer.eval()(x))
        assert (one.mode, one.kind) == (quantizer.mode, quantizer.kind)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1.0)
    assert torch.equal(quantizer(x), other(x))


@every_quantizer
def test_the_fixed_mode_is_final_and_off_is_the_identity(name, weight):
    quantizer = make(name, weight)
    quantizer.fix()
    assert quantizer.mode == "fixed"
    assert quantizer.effective_bits() == quantizer.fixed_bits
    assert not any(parameter.requires_grad for parameter in quantizer.width_parameters())
    x = values(weight)
    quantizer.fix(0)
    assert not quantizer(x).any()
    quantizer.turn_off()
    assert quantizer(x) is x
    assert not any(parameter.requires_grad for parameter in quantizer.parameters())
    assert f"{quantizer}"


@pytest.mark.check  # beside the test of a whole step below
@every_quantizer
@pytest.mark.parametrize("training", [True, False])
def test_a_compiler_takes_it_whole(name, weight, training):
    torch._dynamo.reset()  # it counts compilations of all quantizers together
    quantizer = make(name, weight).train(training)
    compiled = torch.compile(copy.deepcopy(quantizer), fullgraph=True, backend="aot_eager")
    x = values(weight).requires_grad_()
    torch.manual_seed(3)
    expected = quantizer(x)
    torch.manual_seed(3)
    found = compiled(x)
    assert found.shape == expected.shape
    if not training:
        torch.testing.assert_close(found, expected)
    else:
        found.sum().backward()
        learning = [p for p in compiled.range_parameters() if p.requires_grad]
        assert all(p.grad is not None for p in learning)


@cache
def trained_once(name):
    model = network()
    compressor = bb.attach(model, IMAGES[:1], bb.Spec(method=name, bits=(2, 4, 8)))
    config = bb.SearchConfig(epochs=2, mu=0.01, frozen_statistics=0.5)
    with torch.random.fork_rng():
        return model, bb.search(compressor, [(IMAGES, LABELS)] * 2, F.cross_entropy, config, progress=False)


def trained(name):
    """A copy of the network that is trained once, its compressor, and the plan."""
    model, plan = trained_once(name)
    model = copy.deepcopy(model)
    return model, bb.Compressor(model), plan


@every_method
def test_a_network_ends_in_a_plan_that_is_counted_fixed_and_deployed(name, tmp_path):
    model, compressor, plan = trained(name)
    widths = compressor.spec.fixed_widths
    if widths is not None:
        assert {plan.bits[f"{layer}.weight"] for layer in (0, 3, 7, 9)} == {widths[0]}
        assert {plan.bits[f"{layer}.input"] for layer in (3, 7, 9)} == {widths[1]}
    assert plan.bits["0.input"] == 8
    assert 0 < compressor.cost(plan).relative_bops < 100
    compressor.fix(plan)
    model.eval()
    reasons = [q.not_deployable for q in compressor.attachment.quantizers.values() if isinstance(q, MethodQuantizer)]
    if any(reasons):
        with pytest.raises(ValueError, match=r"weight cannot be deployed: .*"):
            bb.deploy(compressor)
        return
    before = model(IMAGES)
    small = bb.deploy(compressor)
    torch.testing.assert_close(model(IMAGES), before)  # deploying leaves the network as it was
    torch.testing.assert_close(small(IMAGES), before, rtol=1e-4, atol=1e-4)
    path = tmp_path / "fast.onnx"
    bb.export_onnx(small, IMAGES, path)
    counts = bb.verify(compressor, small, path, IMAGES)
    assert "0 elsewhere" in str(counts)


@every_method
def test_a_step_in_bfloat16(name):
    model = network()
    compressor = bb.attach(model, IMAGES[:1], bb.Spec(method=name))
    compressor.calibrate([IMAGES])
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(IMAGES), LABELS)
    loss.float().backward()
    groups = {group["name"]: group["params"] for group in compressor.parameter_groups()}
    assert all(torch.isfinite(p.grad).all() for params in groups.values() for p in params if p.grad is not None)
    assert any(p.grad is not None for p in groups["weights"])


@every_method
def test_a_state_of_the_whole_network_loads(name):
    _, compressor, plan = trained(name)
    compressor.fix(plan)
    other = bb.attach(network(), IMAGES[:1], compressor.spec)
    other.model.load_state_dict(compressor.model.state_dict())
    assert other.plan() == plan
    assert torch.equal(other.model.eval()(IMAGES), compressor.model.eval()(IMAGES))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.widths is not None])
def test_the_first_and_the_last_layer_can_stay_in_float(name):
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method=name, edge_bits=32))
    assert {n: bits for n, bits in compressor.plan().bits.items() if n[0] in "09"} == {
        "0.weight": 32, "0.input": 32, "9.weight": 32, "9.input": 32,
    }  # fmt: skip
    at_eight = bb.attach(network(), IMAGES[:1], bb.Spec(method=name, edge_bits=8)).plan().bits
    assert (at_eight["0.weight"], at_eight["9.weight"], at_eight["9.input"]) == (8, 8, 8)


def test_rounding_passes_gradients_straight_through():
    x = torch.tensor([0.4, 1.6, -2.5], requires_grad=True)
    assert round_through(x).tolist() == [0.0, 2.0, -2.0]
    assert ceil_through(x).tolist() == [1.0, 2.0, -2.0]
    (round_through(x) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0]


def test_a_scaled_gradient_leaves_the_value():
    x = torch.tensor(3.0, requires_grad=True)
    y = scale_gradient(x, 0.25)
    y.backward()
    assert (y.item(), x.grad.item()) == (3.0, 0.25)


def test_a_method_has_one_range_without_a_second_end():
    quantizer = make("lsq", ACTIVATION)
    with pytest.raises(ValueError, match="two ends"):
        quantizer.set_range(1.0, alpha=-1.0)
    with pytest.raises(ValueError, match="one range for a tensor"):
        quantizer.set_range([1.0, 2.0])


@pytest.mark.check
@every_method
def test_the_loss_of_a_whole_step_is_one_graph(name):
    torch._dynamo.reset()
    model = nn.Sequential(*network()[:3], nn.Flatten(), nn.Linear(6 * 36, 4))  # every quantizer is traced, slowly
    compressor = bb.attach(model, IMAGES[:1], bb.Spec(method=name, bits=(2, 8)))
    compressor.calibrate([IMAGES])
    config = bb.SearchConfig()
    step = TrainingStep(
        model, compressor, F.cross_entropy, make_optimizers(compressor, config), config, mu=0.01
    )  # fmt: skip
    losses = torch.compile(step._losses, backend="aot_eager", fullgraph=True)(IMAGES, LABELS)
    losses[0].backward()
    assert bool(torch.isfinite(losses).all())


class Decoder(nn.Module):
    """Transposed convolutions, square and not, with batch norms that have nearly dead channels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.ConvTranspose2d(8, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.second, self.third = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(4, 6, 3, bias=False)
        self.last_norm, self.head = nn.BatchNorm2d(6), nn.Conv2d(6, 2, 1)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor([1e-7, 1.0, 1.2, 1e-8, 0.7, 1.1, -0.8, 1e-7]))
            self.norm.bias.copy_(torch.linspace(0.2, 0.9, 8))
            self.last_norm.weight[:2] = 1e-7
            self.last_norm.bias.fill_(0.4)

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        return self.head(torch.relu(self.last_norm(self.third(x))))


MAPS = torch.rand(6, 8, 5, 5, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("name", [name for name, weight in DEPLOYED if weight and METHODS[name].weights is not None])
def test_transposed_convolutions_and_dead_channels_keep_their_weights_and_are_deployed(name):
    model = Decoder()
    for _ in range(30):
        model(MAPS)
    float_weights = {layer: getattr(model, layer).weight.detach().clone() for layer in ("first", "second", "third")}
    widths = {"bits": (2, 4, 8)} if METHODS[name].widths is None else {"activation_bits": 8}
    compressor = bb.attach(model, MAPS[:1], bb.Spec(method=name, **widths))
    compressor.calibrate([MAPS])
    compressor.fix()
    model.eval()
    output = model(MAPS)
    assert torch.equal(model(MAPS), output)
    assert max(getattr(model, layer).widening().max().item() for layer in float_weights) > 2  # there are such channels
    for layer, weight in float_weights.items():
        own = getattr(model, layer)
        wide = own.along_outputs(own.widening().expand(weight.shape[0 if layer == "third" else 1])) > 1.01
        kept = ~wide.expand_as(weight)
        found = torch.corrcoef(torch.stack([own.effective_weight()[kept], weight[kept]]))[0, 1].item()
        assert found > (0.75 if "binary" in name else 0.85), layer
    small = bb.deploy(compressor)
    torch.testing.assert_close(small(MAPS), output, rtol=1e-4, atol=1e-5)
