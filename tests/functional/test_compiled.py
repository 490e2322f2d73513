"""The compiled path where compiling does not work: the definition takes over, and the log says so once."""

import logging
import time

import pytest
import torch

from bayesbits.functional import compiled, gated_quantize, implementation


@pytest.fixture(autouse=True)
def _fresh_state():
    for function in (compiled.available, compiled._warn):
        function.cache_clear()
    yield
    for function in (compiled.available, compiled._warn):
        function.cache_clear()


def quantize() -> torch.Tensor:
    x = torch.linspace(-2, 2, 1001).requires_grad_()
    with implementation("compiled"):
        y = gated_quantize(x, 1.0, torch.ones(5), signed=True)
    y.sum().backward()
    assert x.grad.any()
    return y


def test_without_a_compiler(monkeypatch, caplog):
    def missing() -> str:
        raise RuntimeError("there is none")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", missing)
    with caplog.at_level(logging.WARNING, "bayesbits"):
        first, second = quantize(), quantize()
    assert torch.equal(first, second)
    assert [record.getMessage() for record in caplog.records if record.name == "bayesbits"] == [
        "no C++ compiler was found (there is none): quantizers run uncompiled on the CPU, several times slower"
    ]


def test_with_a_compiler_that_fails(monkeypatch, caplog):
    class Failed(torch._dynamo.exc.BackendCompilerFailed):
        def __init__(self) -> None:
            RuntimeError.__init__(self, "out of luck\nlong explanation")

        def __str__(self) -> str:
            return "out of luck\nlong explanation"

    def broken(*arguments):
        raise Failed

    monkeypatch.setattr(compiled, "_specialize", lambda *key: broken)
    with caplog.at_level(logging.WARNING, "bayesbits"):
        quantize()
        quantize()
    messages = [record.getMessage() for record in caplog.records if record.name == "bayesbits"]
    assert len(messages) == 1
    assert "compiling failed (Failed: out of luck)" in messages[0]


@pytest.fixture
def compilations(monkeypatch):
    """The combinations that were compiled, which here are the definition itself."""
    made = []
    monkeypatch.setattr(compiled, "_runs", type(compiled._runs)())
    monkeypatch.setattr(compiled, "_compiled", set())
    monkeypatch.setattr(compiled, "_specialize", lambda function, *key: made.append(function.__name__) or function)
    return made


def run_large() -> None:
    gated_quantize(torch.zeros(compiled.MIN_ELEMENTS), 1.0, torch.ones(5), signed=True)


def test_what_runs_now_and_then_is_not_compiled(compilations, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_RUNS", 3)
    for _ in range(3):
        run_large()
    assert not compilations
    run_large()
    assert compilations == ["forward"]


@pytest.mark.parametrize("steps", [compiled.MIN_RUNS, compiled.MIN_RUNS + 1])
def test_a_training_is_compiled_from_its_start_or_not_at_all(steps, compilations):
    with compiled.expecting(steps):
        run_large()
    assert bool(compilations) == (steps > compiled.MIN_RUNS)


def test_a_long_compilation_is_told_of_once(compilations, monkeypatch, caplog):
    def compiling(function, *key):
        def slow(*arguments):
            deadline = time.monotonic() + 10
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.01)
            return function(*arguments)

        return slow

    monkeypatch.setattr(compiled, "_LOG_AFTER", 0.0)
    monkeypatch.setattr(compiled, "_specialize", compiling)
    with caplog.at_level(logging.WARNING, "bayesbits"), compiled.expecting(compiled.MIN_RUNS + 1):
        run_large()
        run_large()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["compiling the quantizers for this CPU, once: torch keeps the result for the next time"]
