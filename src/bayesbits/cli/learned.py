"""How a front was learned, beside it as posttrain.json: points learned in another way are never overwritten."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesbits.recipes.run_folder import FRONT, POSTTRAIN, first_difference
from bayesbits.records.front import Front
from bayesbits.utils.files import write_atomically


def learned_before(folder: Path, settings: Mapping[str, Any]) -> Front | None:
    """The front in a folder, if there is one; an error where it was learned in another way."""
    if not (folder / FRONT).exists():
        return None
    way_out = "choose another folder by --out"
    if not (folder / POSTTRAIN).exists():
        raise ValueError(
            f"{folder / FRONT} is there, and no {POSTTRAIN} says how it was learned; {way_out}, or remove it"
        )
    try:
        found = json.loads((folder / POSTTRAIN).read_text(encoding="utf-8"))
        front = Front.load(folder / FRONT)
    except ValueError as error:
        raise ValueError(f"{folder} holds a front that cannot be read ({error}); {way_out}, or remove it") from error
    difference = first_difference(found, json.loads(_text(settings)))
    if difference is not None:
        raise ValueError(f"{folder / FRONT} was learned in another way: {difference}; {way_out}")
    return front


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write down how the front is learned."""
    write_atomically(folder / POSTTRAIN, _text(settings).encode())


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2) + "\n"
