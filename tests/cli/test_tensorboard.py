"""Metrics become events of TensorBoard, each once; without the package the error names the extra."""

import sys
from types import ModuleType
from typing import ClassVar

import pytest

from bayesbits.cli.tensorboard import EventWriter
from bayesbits.utils import optional_packages
from tests.cli.invoke import bayesbits
from tests.report.runs import gates_line, write_run


class Writer:
    made: ClassVar[list["Writer"]] = []

    def __init__(self, folder):
        self.folder, self.scalars, self.closed = folder, [], False
        Writer.made.append(self)

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def flush(self):
        pass

    def close(self):
        self.closed = True


@pytest.fixture
def writers(monkeypatch):
    """TensorBoard as far as it is used, in place of the package."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(optional_packages, "_is_installed", lambda name: True)
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


def test_every_value_is_written_once(here, writers):
    write_run(here / "run")
    events = EventWriter(here / "run", here / "logs")
    events.update()
    (writer,) = writers
    assert ("search/task_loss", 1.0, 10) in writer.scalars
    assert ("search/relative_bops", 15.0, 10) in writer.scalars
    assert ("bits/stem.weight", 4.0, 10) in writer.scalars
    before = len(writer.scalars)
    events.update()
    assert len(writer.scalars) == before
    with (here / "run/metrics.jsonl").open("a") as file:
        file.write(gates_line("stem", 30, 2, 8))
    events.update()
    assert writer.scalars[before:] == [
        ("search/relative_bops", 5.0, 30), ("bits/stem.weight", 2.0, 30), ("bits/head.input", 8.0, 30)
    ]  # fmt: skip


def test_watch_writes_them(here, writers):
    write_run(here / "run")
    bayesbits("watch", "run", "--tensorboard", "logs")
    (writer,) = writers
    assert writer.folder == "logs"
    assert writer.scalars
    assert writer.closed


def test_without_the_package_the_extra_is_named(here, monkeypatch):
    monkeypatch.setattr(optional_packages, "_is_installed", lambda name: name != "tensorboard")
    write_run(here / "run")
    assert 'pip install "bayesbits[tensorboard]"' in bayesbits("watch", "run", "--tensorboard", "x", code=1).stderr
