"""Bit operations: counted by hand, expected as counted, in both conventions, and differentiable."""

import copy
import itertools
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bayesbits.cost import CostModel
from bayesbits.cost.bops import Convention
from bayesbits.graph.trace import trace
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer, Topology, Unsupported
from tests.graph.attention import attention, examples
from tests.graph.heads import heads, inputs
from tests.graph.networks import IMAGES, OWN, ROWS, Tied, traced
from tests.networks import ZOO, dropping, random_plan, traced_once, zoo

SMALL = ("lenet5", "mobilenetv2", "cifar_resnet8", "inverted", *OWN)


def topology(name: str) -> Topology:
    return zoo(name) if name in ZOO else traced(name)[2]


@cache
def cost_model(name: str) -> CostModel:
    return CostModel(topology(name))


def as_tensors(plan: Plan, network: Topology, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The widths and gates that stand for a plan."""
    on = {
        name: torch.tensor([index in kept for index in range(len(network.layer(name).out_channels))]).to(dtype)
        for name, kept in plan.kept.items()
    }
    return {name: torch.tensor(bits, dtype=dtype) for name, bits in plan.bits.items()}, on


def by_hand(plan: Plan, network: Topology, convention: str) -> Fraction:
    """Relative BOPs in percent, written down from the definition, one channel after the other."""
    makers: dict[int, list[bool]] = {}
    for layer in network.layers:
        for index, channel in enumerate(() if layer.depthwise else layer.out_channels):
            makers.setdefault(channel, []).append(index in plan.kept.get(layer.name, (index,)))

    def present(channel: int) -> bool:
        return not network.group_of(channel).removable or any(makers[channel])

    def part(values: list[bool]) -> Fraction:
        return Fraction(sum(values), len(values))

    def paper(layer: Layer) -> Fraction:
        alone = all(len(makers.get(channel, ())) <= 1 for channel in layer.in_channels)
        read = part([present(channel) for channel in layer.in_channels]) if alone else Fraction(1)
        if layer.depthwise:
            return read
        return read * part([index in plan.kept.get(layer.name, (index,)) for index in range(len(layer.out_channels))])

    def exact(layer: Layer) -> Fraction:
        read, made = ([present(channel) for channel in side] for side in (layer.in_channels, layer.out_channels))
        return part(made) if layer.depthwise else part(read) * part(made)

    share = {"paper": paper, "exact": exact}[convention]
    bops = sum(
        layer.macs * share(layer) * plan.bits[layer.parameter] * plan.bits[layer.activation] for layer in network.layers
    )
    unsupported = sum(entry.macs for entry in network.unsupported)
    return 100 * (bops + unsupported * 1024) / Fraction(network.macs * 1024)


@pytest.mark.parametrize("name", [*ZOO, *OWN])
def test_eight_bits_everywhere_cost_exactly_one_sixteenth(name: str) -> None:
    model = cost_model(name)
    cost = model.count(Plan.uniform(topology(name)))
    assert (cost.relative_bops, cost.paper_relative_bops) == (6.25, 6.25)
    assert cost.bops == topology(name).macs * 64
    assert sum(layer.share for layer in cost.layers) == pytest.approx(100)
    assert (model.dense().relative_bops, model.dense().macs) == (100.0, topology(name).macs)


def test_a_chain_with_flatten() -> None:
    network = topology("lenet5")
    cost = CostModel(network).count(
        Plan({**Plan.uniform(network, 2, 4).bits, "classifier.1.weight": 8}, {"features.3": tuple(range(16))})
    )
    kept = [(1, 32), (32, 16), (16 * 16, 512), (512, 10)]
    macs = [32 * 25 * 24 * 24, 16 * 32 * 25 * 8 * 8, 16 * 16 * 512, 5120]
    assert [(layer.kept_in, layer.kept_out) for layer in cost.layers] == kept
    assert [layer.macs for layer in cost.layers] == macs
    bops = [macs[0] * 2 * 8, macs[1] * 2 * 4, macs[2] * 8 * 4, macs[3] * 2 * 4]
    assert [layer.bops for layer in cost.layers] == bops
    assert cost.bops == sum(bops)
    assert cost.relative_bops == pytest.approx(100 * sum(bops) / (4_267_008 * 1024), rel=1e-12)
    assert cost.paper_relative_bops == cost.relative_bops  # no residual addition joins


def test_a_residual_stream_counts_its_inputs_in_the_exact_convention_only() -> None:
    network = topology("residual")
    kept = {"stem": (0, 1, 2), "outer": (2, 3, 4), "inner": (0,)}  # the last channel of the stream is nobody's
    cost = CostModel(network).count(Plan(Plan.uniform(network).bits, kept))
    pixels = 2 * 8 * 8
    assert [layer.macs for layer in cost.layers] == [pixels * 5 * 27, pixels * 5, pixels * 5 * 9, 2 * 5 * 5]
    paper = [pixels * 3 * 27, pixels * 6, pixels * 3 * 9, 2 * 5 * 6]
    assert cost.paper_relative_bops == pytest.approx(6.25 * sum(paper) / network.macs, rel=1e-12)


def test_a_depthwise_layer_counts_its_channels_once() -> None:
    network = topology("depthwise")
    cost = CostModel(network).count(Plan(Plan.uniform(network).bits, {"expand": (0, 1), "reduce": (0, 1, 2)}))
    pixels = 2 * 8 * 8
    macs = [pixels * 2 * 3, pixels * 2 * 9, pixels * 2 * 3, 2 * 3 * 2]
    assert [layer.macs for layer in cost.layers] == macs
    assert cost.relative_bops == cost.paper_relative_bops == pytest.approx(6.25 * sum(macs) / network.macs, rel=1e-12)


def test_concatenation() -> None:
    network = topology("concatenation")
    cost = CostModel(network).count(Plan(Plan.uniform(network).bits, {"left": (1,), "right": (0,)}))
    assert [layer.macs for layer in cost.layers] == [2 * 64 * 27, 2 * 64 * 3, 2 * 2 * 4 * 5]


def test_tied_weights_share_a_width() -> None:
    network = traced_once(Tied, ROWS)
    widths = {"first.weight": 4, "head.weight": 8, "first.input": 8, "second.input": 2, "head.input": 2}
    cost = CostModel(network).count(Plan(widths))
    assert [layer.bops for layer in cost.layers] == [48 * 32, 48 * 8, 24 * 16]


def test_unsupported_parts_count_at_32_bits_and_are_shown() -> None:
    network = replace(topology("lenet5"), unsupported=(Unsupported("products", "bmm", 1_000_000, "two tensors"),))
    cost = CostModel(network).count(Plan.uniform(network))
    assert (cost.macs, cost.unsupported_macs) == (5_267_008, 1_000_000)
    assert cost.bops == 4_267_008 * 64 + 1_000_000 * 1024
    assert cost.relative_bops == pytest.approx(100 * cost.bops / (5_267_008 * 1024), rel=1e-12)
    assert CostModel(network).dense().relative_bops == 100.0
    assert "(float)" in str(cost)


def test_channels_that_one_layer_makes_twice() -> None:
    network = traced_once(Mirrored, IMAGES)  # five channels: the middle one is its own mirror image
    for seed in range(20):
        plan = random_plan(network, seed)
        assert CostModel(network).count(plan).relative_bops == pytest.approx(float(by_hand(plan, network, "exact")))


class Mirrored(nn.Module):
    """Channels of one layer are coupled to each other, all but one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 5, 1), nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + x.flip(1))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SMALL), st.integers(0, 10**6), st.sampled_from(["exact", "paper"]))
def test_expected_counted_and_written_by_hand_agree(name: str, seed: int, convention: Convention) -> None:
    network, model = topology(name), cost_model(name)
    plan = random_plan(network, seed)
    cost = model.count(plan)
    hand = float(by_hand(plan, network, convention))
    assert {"exact": cost.relative_bops, "paper": cost.paper_relative_bops}[convention] == pytest.approx(
        hand, rel=1e-12
    )
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        widths, on = as_tensors(plan, network, dtype)
        expected = model.relative_bops(widths, on, convention)
        assert expected.dtype == dtype
        assert expected.item() == pytest.approx(hand, rel=tolerance)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SMALL), st.integers(0, 10**6))
def test_expected_bytes_are_the_counted_ones_but_for_bytes_that_are_begun(name: str, seed: int) -> None:
    network, model = topology(name), cost_model(name)
    plan = random_plan(network, seed)
    widths, on = as_tensors(plan, network, torch.float64)
    counted = model.count(plan).weight_bytes
    assert -1e-6 <= counted - model.weight_bytes(widths, on).item() < len(network.layers)


def random_tensors(network: Topology, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Widths between 2 and 10 bits, and gates between 0.1 and 0.9 for every layer that can have some."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1

    widths = {name: 2 + 10 * uniform() for name in Plan.uniform(network, residual_bits=None).bits}
    return widths, {layer.name: uniform(len(layer.out_channels)) for layer in network.layers if not layer.depthwise}


@pytest.mark.parametrize("convention", ["exact", "paper"])
@pytest.mark.parametrize("name", ["residual", "inverted", "padded shortcut", "twice"])
def test_gradients(name: str, convention: Convention) -> None:
    model = cost_model(name)
    widths, on = random_tensors(topology(name))

    def function(*values: Tensor) -> Tensor:
        names = iter(values)
        return model.relative_bops({key: next(names) for key in widths}, {key: next(names) for key in on}, convention)

    values = tuple(value.clone().requires_grad_() for value in (*widths.values(), *on.values()))
    assert torch.autograd.gradcheck(function, values)


def drawn(on: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    return {name: torch.bernoulli(values, generator=generator) for name, values in on.items()}


@pytest.mark.parametrize("name", ["inverted", "residual", "depthwise", "twice"])
def test_the_expectation_is_the_average_over_sampled_gates(name: str) -> None:
    network, model = topology(name), cost_model(name)
    widths, on = random_tensors(network)
    generator = torch.Generator().manual_seed(1)
    samples = torch.stack([model.relative_bops(widths, drawn(on, generator)) for _ in range(1500)])
    error = samples.std() / len(samples) ** 0.5
    assert abs(samples.mean() - model.relative_bops(widths, on)) < 3 * error


def test_the_expectation_is_exact_where_a_class_stands_on_both_sides() -> None:
    network, model = topology("inverted"), cost_model("inverted")
    project = network.layer("project")
    assert set(project.in_channels) == set(project.out_channels)
    widths, on = random_tensors(network)
    on = {name: on[name] for name in ("stem", "project")}
    total = torch.zeros((), dtype=torch.float64)
    for choice in itertools.product((0.0, 1.0), repeat=6):
        gates = torch.tensor(choice, dtype=torch.float64)
        likely = torch.cat([on["stem"], on["project"]])
        weight = torch.where(gates > 0, likely, 1 - likely).prod()
        total += weight * model.relative_bops(widths, {"stem": gates[:3], "project": gates[3:]})
    assert model.relative_bops(widths, on).item() == pytest.approx(total.item(), rel=1e-12)


def test_a_producer_without_gates_keeps_the_whole_stream() -> None:
    network, model = topology("residual"), cost_model("residual")
    widths, _ = random_tensors(network)
    whole = model.relative_bops(widths, {})
    assert model.relative_bops(widths, {"outer": torch.zeros(6)}) == whole
    assert model.relative_bops(widths, {"outer": torch.zeros(6)}, "paper") < whole
    assert model.relative_bops(widths, {"head": torch.zeros(5)}) == whole  # channels that cannot be removed
    assert model.relative_bops(widths, {"head": torch.zeros(5)}, "paper") == whole


def test_a_vanished_weight_costs_nothing() -> None:
    network = topology("residual")
    cost = CostModel(network).count(Plan({**Plan.uniform(network).bits, "outer.weight": 0}, {"outer": ()}))
    outer = cost.layers[2]
    assert (outer.macs, outer.bops, outer.weight_bytes, outer.parameters) == (0, 0, 0, 0)
    assert cost.macs == network.macs - network.layer("outer").macs


def delete(model: nn.Module, network: Topology, removed: frozenset[int]) -> None:
    """Really take the channels out of a network's parameters."""
    for layer in network.layers:
        module: Any = model.get_submodule(layer.name)
        rows, columns = (
            torch.tensor([index for index, channel in enumerate(side) if channel not in removed])
            for side in (layer.out_channels, layer.in_channels)
        )
        weight = module.weight.data[rows]
        module.weight.data = weight if layer.depthwise else weight[:, columns]
        module.groups = len(rows) if layer.depthwise else 1
        norm: Any = model.get_submodule(layer.norm) if layer.norm else nn.Module()
        for owner in (module, norm):
            for name in ("bias", "running_mean", "running_var") + (("weight",) if owner is norm else ()):
                if isinstance(getattr(owner, name, None), Tensor):
                    getattr(owner, name).data = getattr(owner, name).data[rows]


def run_and_count(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """MACs and weight elements from the shapes that pass in a run, for convolutions and linear layers."""
    macs, elements = [], []

    def note(module: Any, _: Any, output: Tensor) -> None:
        macs.append(output.numel() * module.weight[0].numel())
        elements.append(module.weight.numel())

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(note)
    with torch.no_grad():
        model.eval()(torch.ones(shape))
    return sum(macs), sum(elements)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2 at 224"])
def test_dropping_a_third_costs_what_the_smaller_network_runs(name: str) -> None:
    make, shape = ZOO[name]
    network, model = zoo(name), make()
    plan = dropping(network, 0.3)
    cost = CostModel(network).count(plan)
    delete(model, network, plan.removed(network))
    macs, elements = run_and_count(model, shape)
    assert cost.macs == macs
    assert cost.bops == macs * 64
    assert cost.parameters == elements + sum(layer.kept_out for layer in cost.layers)  # each has a bias or a norm
    assert cost.weight_bytes == elements + 4 * sum(layer.kept_out for layer in cost.layers)


def test_dropping_a_third_of_resnet18_by_arithmetic() -> None:
    a, b, c, d = (width - width * 3 // 10 for width in (64, 128, 256, 512))
    stem = 112**2 * 49 * 3 * a
    stages = 56**2 * 9 * 4 * a * a
    for size, before, after in ((28, a, b), (14, b, c), (7, c, d)):
        stages += size**2 * (9 * before * after + 3 * 9 * after * after + before * after)
    assert cost_model("resnet18").count(dropping(zoo("resnet18"), 0.3)).macs == stem + stages + 1000 * d


def test_errors_name_what_is_wrong() -> None:
    network, model = topology("depthwise"), cost_model("depthwise")
    widths, _ = random_tensors(network)
    with pytest.raises(ValueError, match=r"on\['filter'\] has shape \(8,\).*not depthwise"):
        model.relative_bops(widths, {"filter": torch.ones(8)})
    with pytest.raises(ValueError, match=r"on\['expand'\] has shape \(3,\)"):
        model.relative_bops(widths, {"expand": torch.ones(3)})
    with pytest.raises(ValueError, match="convention is 'loose'; it is 'exact' or 'paper'"):
        model.relative_bops(widths, {}, "loose")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no width for the tensor 'expand.weight'"):
        model.count(Plan({}))


class Operations(TorchDispatchMode):
    """The names of all operations that reach the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("convention", ["exact", "paper"])
def test_a_training_step_asks_the_device_nothing(convention: Convention) -> None:
    widths, on = random_tensors(topology("mobilenetv2"))
    leaves = [value.requires_grad_() for value in (*widths.values(), *on.values())]
    with Operations() as operations:
        cost_model("mobilenetv2").relative_bops(widths, on, convention).backward()
    assert all(leaf.grad is not None for leaf in leaves if leaf is not on["classifier.1"])
    assert not {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"} & set(operations.names)


def test_it_compiles_and_ignores_autocast_and_leaves_no_trace_in_checkpoints() -> None:
    network = topology("inverted")
    model = copy.deepcopy(CostModel(network))
    widths, on = random_tensors(network)
    widths, on = ({name: value.float() for name, value in values.items()} for values in (widths, on))
    plain = model.relative_bops(widths, on)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.relative_bops(widths, on), plain)
    compiled = torch.compile(model.relative_bops, backend="aot_eager", fullgraph=True)
    assert compiled(widths, on).item() == pytest.approx(plain.item(), rel=1e-6)
    assert model.state_dict() == {}
    assert list(model.parameters()) == []


def test_the_steps_of_groups_are_counted_once_and_where_there_are_codes() -> None:
    network = topology("residual")
    plain, grouped = CostModel(network), CostModel(network, {"head.weight": 100, "inner.weight": 8})
    plan = Plan.uniform(network, 4, 8)
    assert grouped.count(plan).weight_bytes == plain.count(plan).weight_bytes + 108
    costs = {layer.name: layer.weight_bytes for layer in grouped.count(plan).layers}
    own = {layer.name: layer.weight_bytes for layer in plain.count(plan).layers}
    assert {name: costs[name] - own[name] for name in costs} == {"stem": 0, "inner": 8, "outer": 0, "head": 100}
    assert grouped.dense().weight_bytes == plain.dense().weight_bytes  # no codes, no steps
    widths = {name: torch.tensor(float(bits)) for name, bits in plan.bits.items()}
    assert (grouped.weight_bytes(widths, {}) - plain.weight_bytes(widths, {})).item() == 108
    assert grouped.count(plan).bops == plain.count(plan).bops


def test_products_of_two_activations_count_with_the_widths_of_both_operands() -> None:
    network = trace(attention(), examples(2), activation_products=True)
    model, macs = CostModel(network), 2 * 2 * 5 * 5 * 4
    plan = Plan.uniform(network, 8, 8)
    plan = replace(plan, bits={**plan.bits, "sdpa.query": 2, "sdpa.value": 4})
    cost, whole = model.count(plan), model.count(Plan.uniform(network, 8, 8))
    assert [(one.name, one.macs, one.left_bits, one.right_bits, one.bops) for one in cost.products] == [
        ("sdpa.scores", macs, 2, 8, macs * 2 * 8),
        ("sdpa.context", macs, 8, 4, macs * 8 * 4),
    ]
    assert (cost.macs, cost.unsupported_macs) == (network.macs, 0)
    assert whole.bops - cost.bops == macs * (64 - 16) + macs * (64 - 32)
    assert cost.relative_bops == pytest.approx(100 * cost.bops / (network.macs * 1024))
    assert sum(part.share for part in (*cost.layers, *cost.products)) == pytest.approx(100)
    assert whole.relative_bops == pytest.approx(6.25)
    assert model.dense().relative_bops == pytest.approx(100)
    widths = {name: torch.tensor(float(bits), requires_grad=True) for name, bits in plan.bits.items()}
    model.relative_bops(widths, {}).backward()
    assert widths["sdpa.query"].grad == pytest.approx(100 * macs * 8 / (network.macs * 1024))
    assert "sdpa.context" in str(cost)


@pytest.mark.parametrize("products", [False, True])
def test_products_are_charged_for_the_heads_that_are_left(products: bool) -> None:
    """Four heads of queries with two of keys and values: one gate for a half of everything."""
    topology = trace(heads(keys=2), inputs(), activation_products=products)
    (group,) = topology.removable_groups
    model, plan = CostModel(topology), Plan.uniform(topology, 8, 4)
    whole, half = (model.count(one) for one in (plan, plan.without(topology, {group.channels[1]})))
    assert [(layer.kept_in, layer.kept_out) for layer in half.layers] == [(6, 8), (6, 4), (6, 4), (8, 3)]
    assert 2 * half.macs == whole.macs
    assert 2 * half.bops == whole.bops
    assert 2 * half.unsupported_macs == whole.unsupported_macs == (0 if products else 2 * 3 * 4 * 5 * 5 * 4)
    assert [2 * one.macs for one in half.products] == [one.macs for one in whole.products]
    assert half.relative_bops == pytest.approx(whole.relative_bops / 2)
    widths = {name: torch.tensor(float(bits)) for name, bits in plan.bits.items()}
    on = torch.tensor([0.25] * 4 + [0.5] * 4, requires_grad=True)
    expected = model.relative_bops(widths, {"value": on})
    assert expected.item() == pytest.approx(whole.relative_bops * 0.375)
    expected.backward()
    assert on.grad is not None
    assert on.grad.sum().item() == pytest.approx(whole.relative_bops)


class Recurrent(nn.Module):
    """A recurrent layer between two linear ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell, self.head = nn.Linear(4, 4), nn.GRU(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.first(x))[0])


def test_a_weight_of_a_recurrent_layer_costs_its_macs_times_its_bits_times_32():
    topology = trace(Recurrent(), torch.zeros(5, 2, 4))
    uniform = Plan.uniform(topology, 8, 8).bits
    plan = Plan({**uniform, "cell.weight_ih_l0": 2, "cell.weight_hh_l0": 4})
    model = CostModel(topology)
    cost = model.count(plan)
    rows, first, head = 5 * 2, 16, 6
    bops = rows * ((first + head) * 64 + 36 * 2 * 32 + 27 * 4 * 32)
    assert (cost.macs, cost.bops) == (rows * (first + head + 36 + 27), bops)
    assert cost.unsupported_macs == 0
    assert cost.relative_bops == pytest.approx(100 * bops / (cost.macs * 1024))
    ih, hh = cost.tables
    assert (ih.name, ih.bits, ih.macs, ih.bops, ih.weight_bytes) == ("cell.weight_ih_l0", 2, 360, 360 * 64, 9)
    assert (hh.bits, hh.macs, hh.bops, hh.parameters) == (4, 270, 270 * 128, 27)
    assert hh.share == pytest.approx(100 * hh.bops / bops)
    assert sum(part.share for part in cost.parts) == pytest.approx(100)
    widths = {name: torch.tensor(float(bits), dtype=torch.float64) for name, bits in plan.bits.items()}
    assert model.relative_bops(widths, {}).item() == pytest.approx(cost.relative_bops)
    row = next(line.split() for line in str(cost).splitlines() if "weight_hh" in line)
    assert row == ["cell.weight_hh_l0", "270", "4", "32", f"{hh.share:.2f}", "14", "27"]
    unnamed = {name: bits for name, bits in plan.bits.items() if name != "cell.weight_hh_l0"}
    assert model.count(Plan(unnamed)).bops == bops + 270 * 32 * 28, "a plan that does not name it: float"
    del widths["cell.weight_hh_l0"]
    assert model.relative_bops(widths, {}).item() == pytest.approx(model.count(Plan(unnamed)).relative_bops)
    assert model.dense().relative_bops == pytest.approx(100)
