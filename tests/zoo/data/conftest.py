"""Data is looked for only where a test says."""

import pytest


@pytest.fixture(autouse=True)
def no_folder_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAYESBITS_DATA", raising=False)
