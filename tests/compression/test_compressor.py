"""What the handle does: the promises of two lines in a user's own loop."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bayesbits as bb
from bayesbits.functional import implementation
from bayesbits.zoo import models
from tests.compression.networks import Watch, loss_of, make, output_of
from tests.graph.networks import OWN, TRANSFORMERS
from tests.networks import dropping


@pytest.mark.parametrize("name", ["lenet5", "vgg7", "resnet8", "mobilenetv2", *OWN, *TRANSFORMERS])
def test_a_few_steps_move_gates_and_ranges_and_a_strong_penalty_changes_the_plan(name):
    model, inputs = make(name)
    compressor = bb.attach(model, inputs)
    compressor.calibrate([inputs])
    before, plan = copy.deepcopy(model.state_dict()), compressor.plan()
    groups = {group.pop("name"): group for group in compressor.parameter_groups()}
    optimizer = torch.optim.Adam(
        [groups["weights"] | {"lr": 1e-3}, groups["gates"] | {"lr": 1.0}, groups["ranges"] | {"lr": 1e-2}]
    )
    model.train()
    for _ in range(9):  # gates go from a logit of 6 to about -3
        optimizer.zero_grad()
        loss = loss_of(model, inputs) + 10.0 * compressor.penalty()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    after = model.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in after if key.endswith("logits"))
    assert any(not torch.equal(before[key], after[key]) for key in after if key.endswith("log_beta"))
    assert compressor.plan() != plan
    assert compressor.cost().relative_bops < compressor.cost(plan).relative_bops
    assert output_of(model.eval(), inputs).isfinite().all()


class Twins(nn.Module):
    """Two layers of equal MACs side by side; only one of them drives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.sensitive, self.idle = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.sensitive(x)) + 1e-3 * torch.tanh(self.idle(x)))


def test_bits_follow_the_task_and_not_the_penalty_alone():
    torch.manual_seed(0)
    model, x = Twins(), torch.randn(256, 16)
    target = Twins()(x).detach() * 3
    compressor = bb.attach(model, x, bb.Spec(prune=False, residual_bits=None))
    compressor.calibrate([x])
    gates = [q.gates.logits for q in compressor.attachment.quantizers.values() if q.mode == "learning"]
    optimizer = torch.optim.Adam(
        [{"params": gates, "lr": 0.1}, {"params": compressor.parameter_groups()[0]["params"], "lr": 1e-3}]
    )
    for _ in range(400):
        optimizer.zero_grad()
        (((model(x) - target) ** 2).mean() + 1e-3 * compressor.penalty()).backward()
        optimizer.step()
    bits = compressor.plan().bits
    assert bits["sensitive.weight"] > bits["idle.weight"]


def test_dropping_a_third_lowers_the_macs_to_the_figure_by_hand():
    model = models.create("lenet5")
    compressor = bb.attach(model, torch.randn(1, 1, 28, 28))
    plan = dropping(compressor.topology, 0.25)
    c1, c2, hidden = 24, 48, 384
    by_hand = 24 * 24 * 25 * c1 + 8 * 8 * 25 * c1 * c2 + 16 * c2 * hidden + hidden * 10
    assert compressor.cost(plan).macs == by_hand


def test_eight_bits_everywhere_cost_exactly_a_sixteenth():
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28))
    assert compressor.cost(bb.Plan.uniform(compressor.topology, weights=8, activations=8)).relative_bops == 6.25


@pytest.mark.parametrize("name", ["lenet5", "resnet8", "mobilenetv2", "depthwise", "residual"])
def test_expected_and_counted_cost_agree_where_gates_are_decided(name):
    model, inputs = make(name)
    compressor = bb.attach(model, inputs)
    torch.manual_seed(1)
    with torch.no_grad():
        for quantizer in compressor.attachment.quantizers.values():
            quantizer.gates.logits.copy_(torch.where(torch.rand_like(quantizer.gates.logits) < 0.7, 60.0, -60.0))
        for gate in compressor.attachment.channel_gates.values():
            gate.gates.logits.copy_(torch.where(torch.rand_like(gate.gates.logits) < 0.8, 60.0, -60.0))
    assert compressor.expected_relative_bops().item() == pytest.approx(compressor.cost().relative_bops, rel=1e-6)


def test_autocast_checkpointing_and_compile_keep_working():
    torch.manual_seed(0)
    x, y = torch.randn(4, 1, 12, 12), torch.randint(10, (4,))
    model = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 10))
    compressor = bb.attach(model, x, bb.Spec(bits=(2, 8)))  # few widths are compiled in half the time
    compressor.calibrate([x])
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16

    def gradients(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        model.zero_grad()
        compressor.attachment.bank.counter[1] = 5
        (cross_entropy(run(x), y) + compressor.penalty()).backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients(model)
    checkpointed = gradients(lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False))
    torch._dynamo.reset()
    compiled = gradients(torch.compile(model, fullgraph=True, backend="aot_eager"))
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("fixed", [False, True])
def test_data_parallel_training(fixed):
    x = torch.randn(4, 1, 28, 28)
    model = models.create("lenet5")
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    if fixed:
        compressor.fix(dropping(compressor.topology, 0.25))
    other = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    for _ in range(3):  # from the second step on, every gradient that is asked for has to come
        model(x).sum().backward()
        other(x).sum().backward()
    for expected, actual in zip(model.parameters(), other.module.parameters(), strict=True):
        assert (expected.grad is None) == (not expected.requires_grad)
        assert expected.grad is None or torch.allclose(expected.grad, actual.grad, rtol=1e-4)


def test_a_failed_calibration_changes_nothing():
    model, x = models.create("lenet5"), torch.randn(1, 1, 28, 28)
    compressor = bb.attach(model, x)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="features"):
        compressor.calibrate([x, x * float("nan")])
    assert str(before) == str(model.state_dict())
    assert not compressor.attachment.calibrated


@pytest.mark.parametrize("penalty", ["paper", "expected_bops"])
def test_penalties_reach_every_gate(penalty):
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28), bb.Spec(penalty=penalty))
    compressor.penalty().backward()
    gates = next(group for group in compressor.parameter_groups() if group["name"] == "gates")["params"]
    assert all((gate.grad > 0).all() for gate in gates)


def test_diagnose_speaks_of_every_tensor():
    torch.manual_seed(0)
    model, x = models.create("lenet5"), torch.randn(8, 1, 28, 28)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    diagnosis = compressor.diagnose([(x, torch.randint(10, (8,)))], cross_entropy)
    assert {tensor.name for tensor in diagnosis.tensors} == set(compressor.attachment.quantizers)
    assert "classifier.1.weight" in str(diagnosis)


def test_a_training_step_reads_no_value_back_to_the_host():
    """On a GPU each of these operations waits for the device; tests/gpu asks the device itself."""
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    model = models.create("vgg7")
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    with implementation("torch"), Watch() as watch:
        (cross_entropy(model(x), y) + 0.01 * compressor.penalty()).backward()
    assert "convolution_backward" in watch.names
    assert not watch.names & {
        "_local_scalar_dense",
        "item",
        "nonzero",
        "masked_select",
        "is_nonzero",
        "equal",
        "unique",
    }


def test_large_networks_are_counted_right():
    resnet = bb.trace(models.create("resnet18").eval(), torch.randn(1, 3, 224, 224))
    mobile = bb.trace(models.create("mobilenetv2").eval(), torch.randn(1, 3, 224, 224))
    assert resnet.macs == 1_814_073_344
    assert mobile.macs == 300_774_272


def test_a_handle_after_detaching_says_so():
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28))
    compressor.detach()
    for use in (compressor.cost, compressor.penalty, compressor.detach, compressor.plan):
        with pytest.raises(ValueError, match="was detached"):
            use()
    assert repr(compressor) == str(compressor) == "Compressor of a network that was detached"


def test_wrong_arguments_are_named():
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28))
    with pytest.raises(TypeError, match=r"pass \[batch\]"):
        compressor.calibrate(torch.randn(2, 1, 28, 28))
    with pytest.raises(TypeError, match=r"Plan\.load"):
        compressor.fix("plan.json")
    assert "Compressor of 4 layers" in repr(compressor)


def test_a_network_from_scratch_learns_after_calibration():
    """Ranges must fit what batch norms make of the data in training, not the statistics that they start with."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(c, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for c in (3, 16, 16, 16)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * 64, 4))
    x, y = torch.randn(64, 3, 8, 8), torch.randint(4, (64,))
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    optimizer = torch.optim.Adam(compressor.parameter_groups(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_what_is_about_gates_refuses_other_methods():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    handle = bb.attach(model, torch.randn(1, 4), bb.Spec(method="lsq"))
    batches = [torch.randn(8, 4)]
    handle.calibrate(batches)
    calls = {
        "project": lambda: handle.project(bb.Budget(relative_bops=1.0)),
        "diagnose": lambda: handle.diagnose([(batches[0], torch.zeros(8, dtype=torch.long))], cross_entropy),
        "posttrain": lambda: bb.posttrain(handle, batches),
        "uniform": lambda: bb.baselines.uniform(handle, batches),
        "adaptive rounding": lambda: bb.baselines.adaround(handle, batches),
        "a budget": lambda: bb.search(
            handle, [(batches[0], torch.zeros(8, dtype=torch.long))], cross_entropy,
            bb.SearchConfig(epochs=1, budget="5% bops"), progress=False,
        ),
    }  # fmt: skip
    for what, call in calls.items():
        with pytest.raises(ValueError, match=f"{what} needs the quantizers of Bayesian Bits, .*method='lsq'"):
            call()


def test_our_own_method_adds_nothing_to_the_loss():
    handle = bb.attach(nn.Sequential(nn.Linear(4, 2)), torch.randn(1, 4))
    assert handle.method_loss(torch.tensor(2.0)).item() == 0.0
