"""The compiled path where compiling does not work: the definition takes over, and the log says so once."""

import logging

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

    monkeypatch.setattr(compiled, "_specialise", lambda *key: broken)
    with caplog.at_level(logging.WARNING, "bayesbits"):
        quantize()
        quantize()
    messages = [record.getMessage() for record in caplog.records if record.name == "bayesbits"]
    assert len(messages) == 1
    assert "compiling failed (Failed: out of luck)" in messages[0]
