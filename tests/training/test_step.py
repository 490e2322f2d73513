"""One step: what is minimized, and what happens where compiling does not work."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesbits as bb
from bayesbits.training.budget_control import BudgetControl
from bayesbits.training.config import SearchConfig
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.step import TrainingStep, distillation_loss

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def make(mu=0.5, teacher=None, loss_fn=F.cross_entropy, bits=(2, 4, 8, 16, 32), limit=None, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    compressor = bb.attach(model, IMAGES, bb.Spec(bits=bits, gates="hard_sigmoid"))
    compressor.calibrate([IMAGES])
    config = SearchConfig(**options)
    optimizers = make_optimizers(compressor, config)
    control = None if limit is None else BudgetControl(compressor, limit, steps=10)
    step = TrainingStep(model, compressor, loss_fn, optimizers, config, mu=mu, control=control, teacher=teacher)
    return compressor, step


def test_the_loss_is_the_task_and_mu_times_the_penalty_and_all_groups_move():
    compressor, step = make(bits=(2, 4, 8))  # at 32 bits nothing is rounded, and ranges have no gradient
    before = [[p.clone() for p in group["params"]] for group in compressor.parameter_groups()]
    loss, task, penalty = step(IMAGES, LABELS).tolist()
    assert loss == pytest.approx(task + 0.5 * penalty, rel=1e-6)
    assert len(before) == 3
    for old, group in zip(before, compressor.parameter_groups(), strict=True):
        assert any(not torch.equal(one, other) for one, other in zip(old, group["params"], strict=True)), group["name"]


def test_distillation_by_hand():
    student, teacher = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [0.5, 0.0]])
    wanted = 0.0
    for one, other in zip(student, teacher, strict=True):
        p, q = torch.softmax(other / 2, 0), torch.softmax(one / 2, 0)
        wanted += 4 * (p * (p / q).log()).sum() / 2
    torch.testing.assert_close(distillation_loss(student, teacher, 2.0), wanted)


def test_a_teacher_takes_its_part_of_the_loss():
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    compressor, step = make(mu=0.0, teacher=teacher, distillation=0.25, temperature=3.0)
    with torch.no_grad():
        output = compressor.model(IMAGES)
        wanted = 0.75 * F.cross_entropy(output, LABELS) + 0.25 * distillation_loss(output, teacher(IMAGES), 3.0)
    loss, task, penalty = step(IMAGES, LABELS)
    torch.testing.assert_close(loss, wanted)
    assert penalty == 0
    assert task != loss


def test_a_compiled_step_equals_an_eager_one_and_takes_batches_of_another_size():
    bits = (8, 32)  # each further one is compiled too
    _, eager = make(bits=bits)
    _, compiled = make(bits=bits, compile=True)
    for size in (6, 6, 2, 6):
        torch.testing.assert_close(compiled(IMAGES[:size], LABELS[:size]), eager(IMAGES[:size], LABELS[:size]))
    assert compiled._compiled is not None


def test_with_a_budget_the_penalty_is_what_its_control_adds_and_every_step_updates_it():
    _, step = make(bits=(2, 4, 8), limit=bb.Budget(relative_bops=1.0, weight_bytes=100))
    step.control.set_progress(0.3, 1)
    before = step.control.log_mu.clone()
    loss, task, penalty = step(IMAGES, LABELS).tolist()
    assert loss == pytest.approx(task + penalty, rel=1e-6)
    costs = torch.stack([step.control.log_costs[0] - step.control.log_limit]).flatten()
    assert penalty == pytest.approx(float((before.exp() * costs).sum()), rel=1e-4)
    assert (step.control.log_mu > before).all()


def test_a_compiled_step_with_a_budget_equals_an_eager_one(monkeypatch):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiler(function, backend="aot_eager", dynamic=False))
    limit = bb.Budget(relative_bops=1.0)
    _, eager = make(bits=(8, 32), limit=limit)
    _, compiled = make(bits=(8, 32), limit=limit, compile=True)
    for part in (0.1, 0.3, 0.5):
        for step in (eager, compiled):
            step.control.set_progress(part, 1)
        torch.testing.assert_close(compiled(IMAGES, LABELS), eager(IMAGES, LABELS))
    assert compiled._compiled is not None
    torch.testing.assert_close(compiled.control.state_dict(), eager.control.state_dict())
    assert not torch.equal(eager.control.log_mu, eager.control.total)


def test_where_compiling_fails_training_goes_on_and_says_so_once(monkeypatch, caplog):
    def broken(function, **options):
        def call(*arguments):
            raise RuntimeError("no such instruction\nand more")

        return call

    _, eager = make()
    monkeypatch.setattr(torch, "compile", broken)
    _, step = make(compile=True)
    with caplog.at_level(logging.WARNING, "bayesbits"):
        for _ in range(2):
            torch.testing.assert_close(step(IMAGES, LABELS), eager(IMAGES, LABELS))
    assert [record.getMessage() for record in caplog.records] == [
        "the network cannot be compiled and trains uncompiled: RuntimeError: no such instruction"
    ]


def test_a_compiled_backward_pass_that_fails_is_done_again_uncompiled(monkeypatch, caplog):
    def broken(gradient):
        raise RuntimeError("a buffer has been changed")

    def compiler(function, **options):
        def call(*arguments):
            values = function(*arguments)
            values.register_hook(broken)
            return values

        return call

    eager_compressor, eager = make()
    compressor, step = make(compile=True)
    monkeypatch.setattr(torch, "compile", compiler)
    with caplog.at_level(logging.WARNING, "bayesbits"):
        for _ in range(2):
            torch.testing.assert_close(step(IMAGES, LABELS), eager(IMAGES, LABELS), rtol=0, atol=0)
    states = [handle.model.state_dict() for handle in (compressor, eager_compressor)]
    torch.testing.assert_close(*states, rtol=0, atol=0)  # nothing was counted twice: statistics, noise
    assert [record.getMessage() for record in caplog.records] == [
        "the network cannot be compiled and trains uncompiled: RuntimeError: a buffer has been changed"
    ]


def test_what_is_wrong_with_the_loss_is_not_blamed_on_the_compiler(monkeypatch):
    def wrong(output, targets):
        raise ZeroDivisionError("of the user's")

    _, step = make(loss_fn=wrong, compile=True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with pytest.raises(ZeroDivisionError, match="of the user's") as raised:
        step(IMAGES, LABELS)
    assert raised.value.__notes__ == ["Before this the compiled network had failed: ZeroDivisionError: of the user's"]


def test_bfloat16_and_channels_last():
    compressor, step = make(precision="bfloat16", channels_last=True)
    seen = []
    compressor.model[0].register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    loss = step(IMAGES, LABELS)
    (image, output), *_ = seen
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert output.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert compressor.model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_an_odd_first_batch_does_not_decide_which_shape_is_compiled():
    _, step = make()
    step(IMAGES[:2], LABELS[:2])
    for _ in range(3):
        step(IMAGES, LABELS)
    assert step._shapes[0][0] == IMAGES.shape
    assert step._calls == 2
    step(IMAGES[:2], LABELS[:2])  # the last of an epoch
    step(IMAGES, LABELS)
    assert step._shapes[0][0] == IMAGES.shape
    assert step._calls == 3
