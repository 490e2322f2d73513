"""What all tests share."""

import gc
import logging
import os
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed

# Without a GPU, Triton kernels run through Triton's interpreter, which has to be chosen before triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# tests/gpu needs a real device; everything that can be tested without one is tested without one.
collect_ignore = [] if torch.cuda.is_available() else ["gpu"]


@pytest.fixture(autouse=True)
def _without_tracing_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pytest's log capture from switching torch's tracing log on, with which tracing takes ten times as long."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


def pytest_sessionfinish() -> None:
    """Let the interpreter clean up at its end as it always does; see below."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _without_modules_in_garbage_collection() -> Iterator[None]:
    """After a test that imported much (a compiler, a runtime), what is alive is left out of garbage collection.

    Modules are never garbage, and each pass over all of their objects takes a quarter of a second.
    """
    before = len(sys.modules)
    yield
    if len(sys.modules) - before > 100:
        gc.collect()
        gc.freeze()


@pytest.fixture
def process_group(tmp_path):
    """A process group of this process alone. What a test builds on it is gone before the group is: torch would hang."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    gc.collect()
    torch.distributed.destroy_process_group()
