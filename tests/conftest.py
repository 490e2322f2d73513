"""What all tests share."""

import logging
import os

import pytest
import torch

# Without a GPU, Triton kernels run through Triton's interpreter, which has to be chosen before triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# tests/gpu needs a real device; everything that can be tested without one is tested without one.
collect_ignore = [] if torch.cuda.is_available() else ["gpu"]


@pytest.fixture(autouse=True)
def _without_tracing_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pytest's log capture from switching torch's tracing log on, with which tracing takes ten times as long."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
