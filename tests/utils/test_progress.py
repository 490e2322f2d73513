"""The progress bar: nothing for short work or without a terminal, and the name of what is done for long work."""

import io

from rich.console import Console

from bayesbits.utils import progress
from bayesbits.utils.progress import progress_bar


def shown(terminal: bool) -> str:
    stream = io.StringIO()
    with progress_bar("work", 3, Console(file=stream, force_terminal=terminal, width=100)) as advance:
        for name in ("first", "second [1]", "third"):
            advance(name)
    return stream.getvalue()


def test_short_work_and_files_show_nothing(monkeypatch):
    assert "work" not in shown(terminal=True)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert shown(terminal=False) == ""


def test_long_work_shows_what_is_done(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    text = shown(terminal=True)
    assert "work: third" in text
    assert "3/3" in text
