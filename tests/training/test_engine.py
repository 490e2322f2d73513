"""The engine: frozen statistics, modes, evaluation, and what stops it before a bad checkpoint."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F

from bayesbits.nn.layer import AttachedLayer
from bayesbits.training import LoaderError, NonFiniteError
from bayesbits.training.checkpoint import read_checkpoint
from bayesbits.training.metrics import read_metrics
from tests.training.problems import Failing, Network, Stream, compressor, data, same, searched, state


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


def test_one_epoch_of_unknown_length_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="epoch_steps"):
        searched(None, Stream(4), epochs=1)


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
    with pytest.raises(NonFiniteError, match=r"head\.weight became NaN or infinite after 6 steps"):
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


def test_the_teacher_is_left_as_it_was():
    teacher = Network()
    before = copy.deepcopy(teacher.state_dict())
    searched(epochs=1, distillation=0.5, options={"teacher": teacher})
    assert teacher.training
    assert same(before, teacher.state_dict())
    assert all(parameter.grad is None for parameter in teacher.parameters())
