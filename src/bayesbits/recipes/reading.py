"""Recipes from TOML: found by name or path, changed by overrides, and checked key by key.

Every error names the file and the key. An override is a line of TOML, `search.mu=0.1`; a value that is not TOML is
taken as text, so that paths need no quotes.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from bayesbits.compression.spec import Rule, Spec
from bayesbits.recipes.recipe import DataConfig, FloatConfig, ModelConfig, Recipe, TaskConfig
from bayesbits.training import FinetuneConfig, OptimizerConfig, SearchConfig

Table = dict[str, Any]
Part = TypeVar("Part")

NONE = "none"  # TOML has no null
PRESETS = {"paper": Spec.paper(), "onnxruntime": Spec.for_backend("onnxruntime")}

_TEXTS = ("name", "description", "source")
_TABLES = ("data", "model", "task", "spec", "float", "search", "finetune")
_OPTIMIZER_KEYS = {entry.name for entry in fields(OptimizerConfig)}
_GROUPS = ("weights", "gates", "ranges")
NOT_OF_STAGES = {"seed"}  # it stands at the top
NOT_OF_FLOAT = {"ranges", "distillation", "temperature"}  # nothing is quantized, and there is nobody to learn from
_SYNONYMS = {
    "rate": "lr",
    "learning_rate": "lr",
    "kind": "optimizer",
    "criterion": "loss",
    "lambda": "mu",
    "bs": "batch_size",
}
_KEYS = {
    "data": {entry.name for entry in fields(DataConfig)},
    "model": {entry.name for entry in fields(ModelConfig)},
    "task": {entry.name for entry in fields(TaskConfig)},
    "spec": {entry.name for entry in fields(Spec)} | {"preset"},
    "float": {entry.name for entry in fields(FloatConfig)} - NOT_OF_STAGES - NOT_OF_FLOAT,
    "search": {entry.name for entry in fields(SearchConfig)} - NOT_OF_STAGES,
    "finetune": {entry.name for entry in fields(FinetuneConfig)} - NOT_OF_STAGES,
}


def names() -> tuple[str, ...]:
    """The recipes that the package carries."""
    return tuple(
        sorted(path.name.removesuffix(".toml") for path in _shipped().iterdir() if path.name.endswith(".toml"))
    )


def load(
    recipe: str | Path | None, overrides: Iterable[str] = (), *, model: str | None = None, data: str | None = None,
    task: str | None = None, loss: str | None = None, metric: str | None = None,
) -> Recipe:  # fmt: skip
    """The recipe that the package carries by this name, or the one in the file at this path.

    `model` and `data` are factories that take the place of the recipe's own network and data, options and all; with
    both of them there need be no recipe. `task` takes the place of the recipe's own task, loss and metric included;
    `loss` and `metric` are put into it. `overrides` come last.
    """
    if recipe is None and (model is None or data is None):
        raise ValueError("there is neither a recipe nor both a model and data of your own")
    table, source, name = _file(str(recipe)) if recipe is not None else ({}, "your model and data", str(model))
    for key, factory in (("model", model), ("data", data)):
        if factory is not None:
            table[key] = {"name": factory}
    if task is not None:
        table["task"] = {"name": task}
    asked = {key: value for key, value in (("loss", loss), ("metric", metric)) if value is not None}
    _merge(table, {"task": asked} if asked else {})
    _merge(table, options_from(overrides))
    _check_keys(table, source)
    try:
        return _recipe(table, name)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def options_from(overrides: Iterable[str]) -> dict[str, Any]:
    """The table that overrides alone come to."""
    table: Table = {}
    for text in overrides:
        _merge(table, _override(text))
    return table


def _file(recipe: str) -> tuple[Table, str, str]:
    """The content of a recipe's file, what errors call it, and what the recipe is called if it does not say."""
    text, source = _text(recipe)
    try:
        return tomllib.loads(text), source, Path(recipe).name.removesuffix(".toml")
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source} is not TOML: {error}") from error


def _shipped() -> Any:
    return resources.files("bayesbits.recipes") / "shipped"


def _text(recipe: str) -> tuple[str, str]:
    if recipe in names():
        return (_shipped() / f"{recipe}.toml").read_text(encoding="utf-8"), f"recipe {recipe}"
    path = Path(recipe)
    if path.is_file():
        return path.read_text(encoding="utf-8"), str(path)
    nearest = difflib.get_close_matches(recipe, names(), n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise FileNotFoundError(
        f"there is no recipe {recipe!r}, and no such file; {hint}The package carries {', '.join(names())}"
    )


def _override(text: str) -> Table:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"the override {text!r} has no '='; it is key=value, such as search.mu=0.1")
    for attempt in (value, json.dumps(value.strip())):
        try:
            return tomllib.loads(f"{key}={attempt}")
        except tomllib.TOMLDecodeError as error:
            problem = error
    raise ValueError(f"the override {text!r} has a key that is not TOML: {problem}")


def _merge(into: Table, table: Mapping[str, Any]) -> None:
    """Put one table into another; tables in both are merged likewise."""
    for key, value in table.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _check_keys(table: Table, source: str) -> None:
    _check_known(table, {"seed", *_TEXTS, *_TABLES}, "", source)
    for name in _TABLES:
        part = table.get(name, {})
        if not isinstance(part, dict):
            raise ValueError(f"{source}: {name} is {part!r}; it is a table, [{name}]")
        if "seed" in part:
            raise ValueError(
                f"{source}: {name}.seed is not known: the seed stands at the top of a recipe, for all of it"
            )
        _check_known(part, _KEYS[name], f"{name}.", source)
        for group in _GROUPS:
            if isinstance(part.get(group), dict):
                _check_known(part[group], _OPTIMIZER_KEYS, f"{name}.{group}.", source)
    rules = table.get("spec", {}).get("rules", {})
    for pattern, rule in rules.items() if isinstance(rules, dict) else ():
        if isinstance(rule, dict):
            _check_known(rule, {entry.name for entry in fields(Rule)}, f'spec.rules."{pattern}".', source)
    for name in ("data", "model"):
        if "name" not in table.get(name, {}):
            raise ValueError(f"{source}: {name}.name is missing")


def _check_known(table: Mapping[str, Any], known: set[str], prefix: str, source: str) -> None:
    for key in table:
        if key not in known:
            hint = _hint(key, known, prefix)
            where = f"[{prefix[:-1]}] has" if prefix else "a recipe has"
            raise ValueError(f"{source}: {prefix}{key} is not known; {hint}{where} {', '.join(sorted(known))}")


def _hint(key: str, known: set[str], prefix: str) -> str:
    """What may have been meant: the same name in another place, or one that is spelled like it."""
    word = _SYNONYMS.get(key, key)
    if word in known:
        return f"did you mean {prefix}{word}? "
    places = [f"{table}.{name}" for table, names in _KEYS.items() for name in sorted(names)]
    places += [
        f"{place}.{name}" for place in places if place.split(".")[1] in _GROUPS for name in sorted(_OPTIMIZER_KEYS)
    ]
    same = [place for place in places if place.rpartition(".")[2] == word]
    own = [place for place in same if prefix and place.startswith(prefix)] or same
    nearest = difflib.get_close_matches(key, known, n=1)
    meant = own or [f"{prefix}{one}" for one in nearest]
    return f"did you mean {' or '.join(meant)}? " if meant else ""


def _recipe(table: Table, name: str) -> Recipe:
    seed = table.get("seed", 0)
    return Recipe(
        data=_part("data", DataConfig, table["data"]),
        model=_part("model", ModelConfig, table["model"]),
        task=_part("task", TaskConfig, table.get("task", {})),
        spec=_spec(table.get("spec", {})),
        float_training=_stage("float", FloatConfig, table["float"], seed) if "float" in table else None,
        search=_stage("search", SearchConfig, table.get("search", {}), seed),
        finetune=_stage("finetune", FinetuneConfig, table["finetune"], seed) if "finetune" in table else None,
        seed=seed,
        **{"name": name} | {key: table[key] for key in _TEXTS if key in table},
    )


def _part(key: str, make: Callable[..., Part], table: Table) -> Part:
    try:
        return make(**table)
    except (ValueError, TypeError) as error:
        raise ValueError(f"[{key}]: {error}") from error


def _stage(key: str, cls: Callable[..., Part], table: Table, seed: int) -> Part:
    """How one stage of training is done; of an optimizer, what is not given is as the stage has it by default."""
    default = cls()
    optimizers = {
        group: _part(f"{key}.{group}", partial(replace, getattr(default, group)), table[group])
        for group in _GROUPS
        if isinstance(table.get(group), dict)
    }
    return _part(key, cls, table | optimizers | {"seed": seed})


def _spec(table: Table) -> Spec:
    options = {key: None if value == NONE else value for key, value in table.items()}
    preset = options.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"[spec]: preset is {preset!r}; it is one of {', '.join(PRESETS)}")
    return _part("spec", partial(replace, PRESETS[preset] if preset is not None else Spec()), options)
