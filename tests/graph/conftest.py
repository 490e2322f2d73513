"""Keep pytest's log capture from switching torch's tracing log on, with which tracing takes ten times as long."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _without_tracing_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
