"""Files are written whole or not at all."""

import pytest

from bayesbits.utils.files import write_atomically


def test_the_parts_of_a_file_are_written_in_order(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"one", memoryview(b" two"))
    assert path.read_bytes() == b"one two"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
