"""Searching and fine-tuning: what is trained, what is decided, and what stops it."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesbits as bb
from bayesbits.nn.layer import AttachedLayer
from bayesbits.training import LoaderError, NonFiniteError
from bayesbits.training.checkpoint import read_checkpoint
from bayesbits.training.metrics_log import read_metrics
from tests.training.problems import Failing, Network, Stream, compressor, config, data, loaders, same, state


def searched(handle=None, loader=None, loss_fn=F.cross_entropy, /, *, options=None, **changes):
    handle = compressor() if handle is None else handle
    loader = loaders()["feed"] if loader is None else loader
    plan = bb.search(handle, loader, loss_fn, config(**changes), progress=False, **options or {})
    return handle, plan


def test_searching_calibrates_trains_and_decides_but_fixes_nothing():
    before = compressor()
    handle, plan = searched(epochs=8, mu=1.0, gates={"lr": 1.0}, frozen_statistics=0.1)
    assert handle.attachment.calibrated
    for earlier, group in zip(before.parameter_groups(), handle.parameter_groups(), strict=True):
        assert not any(torch.equal(*pair) for pair in zip(earlier["params"], group["params"], strict=True))
    assert handle.cost(plan).relative_bops < 0.5 * compressor().cost().relative_bops
    assert all(q.mode == "learning" for name, q in handle.attachment.quantizers.items() if "convolution.i" not in name)


def test_known_ranges_are_kept():
    handle = compressor()
    handle.calibrate([data().images * 50])
    known = handle.attachment.quantizers["head.input"].beta.clone()
    searched(handle, epochs=1, ranges={"lr": 0.0})
    assert torch.equal(handle.attachment.quantizers["head.input"].beta, known)


def test_fine_tuning_trains_weights_and_ranges_at_the_fixed_decision():
    handle, plan = searched()
    before = state(handle)
    bb.finetune(
        handle, loaders()["feed"], F.cross_entropy,
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
    bb.finetune(handle, loaders()["feed"], F.cross_entropy, bb.FinetuneConfig(epochs=1), plan=plan, progress=False)
    assert handle.plan() == plan


def test_statistics_are_frozen_before_the_plan_and_its_folded_factors_stay():
    statistics, scales = [], []

    def look(output, targets):
        statistics.append(handle.model.norm.running_var.clone())
        scales.append(handle.model.norm.weight.detach().clone())
        return F.cross_entropy(output, targets)

    handle = compressor()
    searched(handle, None, look, epochs=5, frozen_statistics=0.25)
    layer = handle.model.convolution
    assert isinstance(layer, AttachedLayer)
    moved = [not torch.equal(one, other) for one, other in itertools.pairwise(statistics)]
    assert moved == [True] * 14 + [False] * 5  # the last 5 of 20 steps
    assert not torch.equal(scales[-1], scales[-3])  # scale and shift still learn
    factor = handle.model.norm.weight.detach() * torch.rsqrt(statistics[-1] + handle.model.norm.eps)
    assert torch.equal(layer.fold_factor().flatten(), factor)


def test_at_least_the_last_step_is_frozen_where_any_is_asked_for():
    statistics = []

    def look(output, targets):
        statistics.append(handle.model.norm.running_var.clone())
        return F.cross_entropy(output, targets)

    handle = compressor()
    searched(handle, None, look, epochs=1, frozen_statistics=0.01)
    assert torch.equal(statistics[-1], statistics[-2])
    assert not torch.equal(statistics[-2], statistics[-3])


@pytest.mark.parametrize("training", [True, False])
def test_modes_at_the_end_are_those_of_the_start(training):
    handle = compressor()
    handle.model.train(training)
    handle.model.norm.eval()
    searched(handle, epochs=1)
    assert handle.model.training == handle.model.dropout.training == training
    assert not handle.model.norm.training


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
    bb.finetune(handle, loaders()["feed"], F.cross_entropy, bb.FinetuneConfig(epochs=1), progress=False)
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


def test_lists_and_several_inputs_by_name_or_position():
    class Pair(Network):
        def forward(self, x, scale):
            return super().forward(x) * scale

    entry = data()
    for inputs in ((entry.images, torch.ones(1)), {"x": entry.images, "scale": torch.ones(1)}):
        torch.manual_seed(0)
        handle = bb.attach(Pair(), inputs)
        searched(handle, [(inputs, entry.labels)] * 2, epochs=1)
        assert handle.attachment.calibrated


def training_lines(folder):
    return [line for line in read_metrics(folder / "metrics.jsonl") if line["event"] == "train"]


def test_a_loader_without_a_length_learns_it_in_its_first_epoch(tmp_path):
    searched(None, Stream(4), log_steps=1, weights={"lr": 1.0, "schedule": "linear"}, epochs=3,
             options={"folder": tmp_path})  # fmt: skip
    rates = [line["lr"]["weights"] for line in training_lines(tmp_path)]
    assert rates == pytest.approx([1.0] * 9 + [0.75, 0.5, 0.25])


def test_an_endless_loader_has_epochs_of_the_given_length(tmp_path):
    searched(None, Stream(None), epoch_steps=3, epochs=2, log_steps=1, options={"folder": tmp_path})
    lines = training_lines(tmp_path)
    assert [(line["epoch"], line["step"]) for line in lines] == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]


def test_one_epoch_of_unknown_length_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="epoch_steps"):
        searched(None, Stream(4), epochs=1)


def test_samplers_are_told_the_epoch():
    class Sampler(torch.utils.data.SequentialSampler):
        def set_epoch(self, epoch):
            epochs.append(epoch)

    epochs = []
    entry = data()
    tensors = TensorDataset(entry.images, entry.labels)
    searched(None, DataLoader(tensors, 11, sampler=Sampler(tensors)), epochs=3)
    assert epochs == [0, 0, 1, 2]  # calibration looks at the first epoch


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ((pair for pair in [(data().images, data().labels)]), "is an iterator"),
        (5, "cannot be gone through"),
    ],
)
def test_what_cannot_be_gone_through_again_is_refused(loader, message):
    with pytest.raises(TypeError, match=message):
        searched(None, loader)


def test_a_loader_that_raises_is_chained_with_its_place_and_the_checkpoint_stays(tmp_path):
    class Broken(Stream):
        def __iter__(self):
            for number, batch in enumerate(super().__iter__()):
                if number == 2:
                    raise KeyError("image 17 is damaged")
                yield batch

        def __len__(self):
            return 4

    handle = compressor()
    handle.calibrate([data().images])
    with pytest.raises(LoaderError, match=r"KeyError at epoch 0, batch 2: .*image 17.*search\.checkpoint") as caught:
        searched(handle, Broken(), options={"folder": tmp_path})
    assert isinstance(caught.value.__cause__, KeyError)
    assert read_checkpoint(tmp_path / "search.checkpoint")["position"]["step"] == 2


def test_what_is_not_a_pair_is_named():
    handle = compressor()
    handle.calibrate([data().images])
    with pytest.raises(LoaderError, match=r"epoch 0, batch 0: a batch is a pair .* a list of 3"):
        searched(handle, [[data().images, data().labels, data().labels]])
    with pytest.raises(LoaderError, match="no batches in epoch 0"):
        searched(handle, [])


def test_a_loss_that_is_not_finite_stops_before_the_next_checkpoint(tmp_path):
    def explode():
        handle.model.head.weight.data.fill_(float("nan"))

    handle = compressor()
    with pytest.raises(NonFiniteError, match=r"the loss became nan in step 6 .*lower learning rates.*smaller mu"):
        # The sixth loss is computed before, the seventh (step 6, from 0) with what became of the weights.
        searched(handle, None, Failing(6, explode), log_steps=50, checkpoint_seconds=1e6,
                 options={"folder": tmp_path})  # fmt: skip
    assert read_checkpoint(tmp_path / "search.checkpoint")["position"]["step"] == 0


def test_a_parameter_that_is_not_finite_never_reaches_a_checkpoint(tmp_path):
    def explode():
        handle.model.head.weight.data.fill_(float("inf"))

    handle = compressor()
    with pytest.raises(NonFiniteError, match=r"head\.weight is not finite any more after 6 steps"):
        searched(handle, None, Failing(6, explode), options={"folder": tmp_path})
    assert read_checkpoint(tmp_path / "search.checkpoint")["position"]["step"] == 5


def test_evaluation_runs_without_gradients_in_evaluation_and_leaves_no_trace(tmp_path):
    seen = []

    def evaluate(model):
        seen.append((model.training, torch.is_grad_enabled(), model is handle.model))
        torch.rand(3)
        return {"accuracy": float("nan"), "mean": torch.tensor(2.0)}

    handle = compressor()
    searched(handle, epochs=5, evaluate_epochs=2, options={"evaluate": evaluate, "folder": tmp_path})
    assert seen == [(False, False, True)] * 3
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["event"] == "evaluate"]
    assert [(line["epoch"], line["accuracy"], line["mean"]) for line in lines] == [(n, None, 2.0) for n in (2, 4, 5)]
    assert same(state(handle), state(searched(epochs=5)[0]))


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


def test_the_teacher_is_left_as_it_was():
    teacher = Network()
    before = copy.deepcopy(teacher.state_dict())
    searched(epochs=1, distillation=0.5, options={"teacher": teacher})
    assert teacher.training
    assert same(before, teacher.state_dict())
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_no_epochs_and_wrong_configurations():
    handle = compressor()
    _, plan = searched(handle, epochs=0)
    assert plan == handle.plan()
    with pytest.raises(TypeError, match="search takes a SearchConfig"):
        bb.search(handle, [], F.cross_entropy, bb.FinetuneConfig())
    with pytest.raises(TypeError, match="finetune takes a FinetuneConfig"):
        bb.finetune(handle, [], F.cross_entropy, bb.SearchConfig())
    with pytest.raises(TypeError, match=r"what bayesbits\.attach returns"):
        bb.search(nn.Linear(1, 1), [], F.cross_entropy)
