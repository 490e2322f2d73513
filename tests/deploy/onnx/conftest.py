"""A clock of its own for onnxruntime."""

import pytest

from bayesbits.deploy.onnx.runtime import Session


@pytest.fixture
def clock(monkeypatch):
    """Every session takes a time that depends on its size alone; the list holds what was timed."""
    timed = []

    def fastest(self, feeds, rounds):
        elements = sum(array.size for array in feeds.values())
        timed.append(elements)
        return 1e-3 + 1e-9 * elements

    monkeypatch.setattr(Session, "fastest", fastest)
    return timed
