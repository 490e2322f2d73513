"""Which way a training runs is seen in what runs, and told."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesbits as bb
from bayesbits.functional import operation
from bayesbits.training.execution import Execution, executions_in, quantizers_by
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.step import TrainingStep
from tests.training.problems import compressor, config, data


def stepped(**options) -> TrainingStep:
    handle, settings = compressor(), config(**options)
    handle.calibrate([data().images])
    step = TrainingStep(handle.model, handle, F.cross_entropy, make_optimizers(handle, settings), settings, mu=0.1)
    step(*next(iter(bb.DeviceLoader(data(), 12))))
    return step


def execution_of(**options) -> Execution:
    execution = stepped(**options).execution
    assert execution is not None
    return execution


def test_an_eager_step_on_the_cpu():
    found = execution_of()
    definition = "the definition in torch's operations"
    assert found == Execution(definition, False, "compile is false", False, "cuda_graph is false")
    assert str(found) == (
        "not compiled (compile is false), not recorded (cuda_graph is false), "
        "quantizers by the definition in torch's operations"
    )


def test_a_compiled_step_that_sees_plain_operations_and_one_that_sees_the_kernel(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: torch._dynamo.optimize("eager")(function))
    plain = execution_of(compile=True, cuda_graph=True)
    assert plain.compiled
    assert plain.quantizers == "the definition in plain operations, which the compiler fuses"
    assert plain.not_recorded == "the network is on the cpu"
    torch._dynamo.reset()
    monkeypatch.setattr(operation, "has_kernel", lambda x, rows: True)
    opaque = execution_of(compile=True)
    assert opaque.quantizers == "the definition in torch's operations, as one operation each of the compiled network"


def test_compiling_that_fails_is_told_with_the_reason(monkeypatch):
    def failing(*arguments, **options):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(torch, "compile", lambda function, **options: failing)
    found = execution_of(compile=True)
    assert not found.compiled
    assert found.not_compiled == "it failed: RuntimeError: no such instruction"
    assert "as one operation" not in found.quantizers


@pytest.mark.parametrize(
    ("ran", "words"),
    [
        ({"triton_launch"}, "the Triton kernels"),
        ({"eager"}, "the definition in torch's operations"),
        ({"compiled", "eager"}, "the definition, compiled for the CPU where tensors are large"),
        ({"triton_launch", "reference"}, "the Triton kernels and the definition in torch's operations"),
    ],
)
def test_names(ran, words):
    assert quantizers_by(ran, attached=True, compiled=False) == words
    assert quantizers_by(ran, attached=False, compiled=False) == ""


def test_a_run_tells_it_once_on_the_console_and_in_the_metrics(tmp_path, capsys):
    handle = compressor()
    bb.search(handle, bb.DeviceLoader(data(), 12), F.cross_entropy, config(epochs=2), folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["event"] == "execution"]
    assert [line["step"] for line in told] == [1]
    assert told[0]["compiled"] is False
    assert told[0]["not_compiled"] == "compile is false"
    assert capsys.readouterr().err.count("search: not compiled (compile is false)") == 1


def test_a_network_without_quantizers():
    spec = bb.Spec(prune=False, input_bits=32, rules={"*": bb.Rule(bits=32)})
    handle = bb.attach(nn.Linear(4, 2), torch.zeros(1, 4), spec)
    handle.calibrate([torch.ones(2, 4)])
    settings = config()
    step = TrainingStep(handle.model, handle, F.cross_entropy, make_optimizers(handle, settings), settings, mu=0.0)
    step(torch.ones(2, 4), torch.tensor([0, 1]))
    assert str(step.execution).endswith(", no quantizers")


def test_a_result_has_how_each_phase_ran_at_its_end():
    first, last = Execution("a", True, "", True, ""), Execution("b", False, "it failed", False, "no GPU")
    lines = [
        {"phase": "search", "event": "execution", "step": 1, **first.to_json()},
        {"phase": "search", "event": "train", "step": 2},
        {"phase": "search", "event": "execution", "step": 9, **last.to_json()},
        {"phase": "finetune", "event": "execution", "step": 1, **first.to_json()},
    ]
    assert executions_in(lines) == {"search": last, "finetune": first}


def test_what_torch_ran_uncompiled_is_not_called_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # as with TORCHDYNAMO_DISABLE=1
    found = execution_of(compile=True)
    assert not found.compiled
    assert found.not_compiled == "torch ran it uncompiled, as its settings ask for"


def test_batches_whose_shapes_change_all_the_time_are_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: torch._dynamo.optimize("eager")(function))
    images, labels = data().images, data().labels
    loader = [(images[:size], labels[:size]) for size in (3, 4, 5, 6)]
    settings = config(compile=True, epochs=2)
    bb.search(compressor(), loader, F.cross_entropy, settings, folder=tmp_path, progress=False)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    told = [line["not_compiled"] for line in lines if line["event"] == "execution"]
    assert told[0] == ""
    assert told[-1].endswith("batches have another shape")
