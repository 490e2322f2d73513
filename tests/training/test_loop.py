"""Searching and fine-tuning: what is trained, and what is decided."""

import pytest
import torch
import torch.nn.functional as F

import bayesbits as bb
from tests.training.problems import Network, compressor, data, loaders, same, searched, state


def test_searching_calibrates_trains_and_decides_but_fixes_nothing():
    before = compressor()
    handle, plan = searched(epochs=8, mu=1.0, gates={"lr": 1.0}, frozen_statistics=0.1)
    assert handle.attachment.calibrated
    for earlier, group in zip(before.parameter_groups(), handle.parameter_groups(), strict=True):
        pairs = zip(earlier["params"], group["params"], strict=True)
        assert not any(torch.equal(one, other) for one, other in pairs if other.requires_grad)
    assert handle.cost(plan).relative_bops < 0.5 * compressor().cost().relative_bops
    assert all(q.mode == "learning" for name, q in handle.attachment.quantizers.items() if "convolution.i" not in name)


def test_fine_tuning_trains_weights_and_ranges_at_the_fixed_decision():
    handle, plan = searched()
    before = state(handle)
    bb.finetune(
        handle, loaders()["device"], F.cross_entropy,
        bb.FinetuneConfig(epochs=2, weights={"lr": 1e-2}, ranges={"lr": 1e-2}), progress=False,
    )  # fmt: skip
    assert handle.plan() == plan
    assert [group["name"] for group in handle.parameter_groups()] == ["weights", "ranges"]
    assert not torch.equal(before["head.weight"], handle.model.head.weight)
    assert not torch.equal(
        before["bayesbits.tensors./head/weight.log_beta"],
        handle.attachment.quantizers["head.weight"].log_beta,
    )
    assert torch.equal(before["norm.running_var"], handle.model.norm.running_var)


def test_a_plan_from_elsewhere_can_be_fine_tuned():
    handle = compressor()
    handle.calibrate([data().images])
    plan = bb.Plan.uniform(handle.topology, 4, 8)
    bb.finetune(handle, loaders()["device"], F.cross_entropy, bb.FinetuneConfig(epochs=1), plan=plan, progress=False)
    assert handle.plan() == plan


@pytest.mark.parametrize("kind", ["hard_concrete", "hard_sigmoid", "sigmoid"])
def test_every_kind_of_gates_and_the_same_twice(kind):
    spec = bb.Spec(bits=(2, 4, 8), gates=kind)
    one, other = (searched(compressor(spec), epochs=2)[0] for _ in range(2))
    assert same(state(one), state(other))
    assert not same(state(one), state(searched(compressor(spec), epochs=2, seed=1)[0]))


@pytest.mark.parametrize(
    ("spec", "widths", "gates"),
    [
        (bb.Spec(bits=(8,)), {8}, True),  # pruning only, at 8/8
        (bb.Spec(bits=(8,), rules={"*.weight": {"bits": 4}}), {4, 8}, True),  # at 4/8
        (bb.Spec(prune=False), None, True),  # quantization only
        (bb.Spec(bits=(4,), prune=False), {4, 8}, False),  # neither: the input has 8 bits
    ],
)
def test_what_may_be_decided_comes_from_the_spec(spec, widths, gates):
    handle, plan = searched(compressor(spec), epochs=4, mu=3.0, gates={"lr": 1.0})
    assert widths is None or set(plan.bits.values()) == widths
    assert bool(plan.kept) == spec.prune
    assert any(group["name"] == "gates" for group in handle.parameter_groups()) == gates
    bb.finetune(handle, loaders()["device"], F.cross_entropy, bb.FinetuneConfig(epochs=1), progress=False)
    assert handle.plan() == plan


def test_where_nothing_learns_it_is_said():
    handle = compressor(bb.Spec(bits=(32,), prune=False, input_bits=32))
    handle.model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing is left to learn"):
        searched(handle)


def test_sgd_with_steps_beside_adam():
    weights = {"optimizer": "sgd", "lr": 0.05, "schedule": "steps", "milestones": (0.5,), "weight_decay": 1e-4}
    before = state(compressor())
    handle, _ = searched(weights=weights)
    assert not torch.equal(before["head.weight"], handle.model.head.weight)
    assert all(torch.isfinite(parameter).all() for parameter in handle.model.parameters())


def test_a_teacher_is_learned_from_and_needs_its_part_of_the_loss():
    torch.manual_seed(11)
    teacher = Network(0.0)
    with torch.no_grad():
        teacher.head.weight.mul_(8)
    entry = data()

    def distance(**options):
        handle = compressor()
        searched(handle, [(entry.images, entry.labels)] * 8, epochs=5, mu=0.0, weights={"lr": 1e-2}, **options)
        handle.model.eval()
        teacher.eval()
        with torch.no_grad():
            own, wanted = handle.model(entry.images).log_softmax(1), teacher(entry.images).softmax(1)
            return F.kl_div(own, wanted, reduction="batchmean").item()

    teacher.train()
    taught = distance(distillation=1.0, temperature=2.0, options={"teacher": teacher})
    assert taught < 0.5 * distance()
    with pytest.raises(ValueError, match="there is no teacher"):
        searched(distillation=0.5)
    with pytest.raises(ValueError, match="distillation is 0 and there is a teacher"):
        searched(options={"teacher": teacher})
