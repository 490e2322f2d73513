"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file; whatever happens meanwhile, it is the old one or the new one."""
    partial = Path(path).with_name(Path(path).name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
