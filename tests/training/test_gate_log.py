"""Lines about the gates: when they are due, what they say, and that a search writes them."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.methods import METHODS
from bayesbits.training.gate_log import LINES, GateLog
from bayesbits.training.metrics import read_metrics


@pytest.fixture
def compressor():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compressor = bb.attach(model, torch.randn(4, 4), bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([torch.randn(16, 4)])
    return compressor


@pytest.mark.parametrize(("total", "lines"), [(1, 1), (20, 20), (100, 100), (101, 100), (7000, 100)])
def test_a_search_of_any_length_has_at_most_a_hundred_lines(compressor, total, lines):
    log = GateLog(compressor)
    due = [number for number in range(1, total + 1) if log.due(number, total)]
    assert len(due) == lines <= LINES
    assert due[-1] == total
    assert not log.due(0, total)


def test_nothing_is_due_where_no_gate_learns(compressor):
    compressor.fix(compressor.plan())
    assert not GateLog(compressor).due(1, 1)


def test_a_line_says_what_the_gates_decide(compressor):
    with torch.no_grad():
        compressor.attachment.quantizers["2.weight"].gates.logits.copy_(torch.tensor([6.0, -6.0]))
        compressor.attachment.channel_gates["0"].gates.logits[:3] = -6.0
    line = GateLog(compressor).line()
    assert line["bits"] == {"0.weight": 8, "2.weight": 4, "2.input": 8}  # the network's input does not learn
    assert line["probabilities"]["2.weight"] == pytest.approx({"4": 0.9995, "8": 0.0121}, abs=2e-4)
    assert line["relative_bops"] == compressor.cost().relative_bops
    assert line["kept"] == {"0": 5}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_searches_with_lines_of_its_widths(method, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compressor = bb.attach(model, torch.randn(4, 4), bb.Spec(method=method, bits=(2, 4, 8)))
    batches = [(torch.randn(4, 4), torch.randint(2, (4,))) for _ in range(3)]
    config = bb.SearchConfig(epochs=1, log_steps=3)
    plan = bb.search(compressor, batches, nn.functional.cross_entropy, config, folder=tmp_path, progress=False)
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["event"] == "gates"]
    assert bool(lines) == METHODS[method].learns_widths
    for line in lines:
        assert line["bits"] == {name: plan.bits[name] for name in line["bits"]}
        assert set(line["probabilities"]) == (set(line["bits"]) if METHODS[method].gated else set())


@pytest.mark.parametrize(
    ("epochs", "log_steps", "expected"), [(2, 1, [1, 2, 3, 4, 5, 6]), (25, 10**6, range(3, 76, 3))]
)
def test_a_search_writes_them(compressor, tmp_path, epochs, log_steps, expected):
    batches = [(torch.randn(4, 4), torch.randint(2, (4,))) for _ in range(3)]
    config = bb.SearchConfig(epochs=epochs, log_steps=log_steps)
    bb.search(compressor, batches, nn.functional.cross_entropy, config, folder=tmp_path, progress=False)
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["event"] == "gates"]
    assert [line["step"] for line in lines] == list(expected)
    assert lines[-1]["bits"] == {name: compressor.plan().bits[name] for name in lines[-1]["bits"]}
