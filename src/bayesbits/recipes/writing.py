"""Recipes as TOML, every setting written out, so that a run can be repeated when defaults have changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bayesbits.recipes.reading import NONE, NOT_OF_FLOAT, NOT_OF_STAGES
from bayesbits.recipes.recipe import Recipe

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(recipe: Recipe) -> str:
    """The text of a file from which `load` reads an equal recipe."""
    return "\n".join(_lines(to_table(recipe), ())) + "\n"


def to_table(recipe: Recipe) -> dict[str, Any]:
    """The content of that file: plain values in tables."""
    table = asdict(recipe)
    table["float"] = table.pop("float_training")
    for part, left_out in (
        ("float", NOT_OF_STAGES | NOT_OF_FLOAT),
        ("search", NOT_OF_STAGES),
        ("finetune", NOT_OF_STAGES),
    ):
        if table[part] is not None:
            table[part] = {key: value for key, value in table[part].items() if key not in left_out}
    table["spec"]["residual_bits"] = table["spec"]["residual_bits"] or NONE
    kept = _without_none(table)
    assert isinstance(kept, dict)
    return kept


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return list(value) if isinstance(value, tuple) else value


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in table.items() if key not in tables}
    if path and (plain or not tables):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        yield from _lines(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    assert isinstance(value, int | float), f"a recipe holds no {type(value).__name__}"
    return repr(value)
