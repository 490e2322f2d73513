"""Recipes as TOML: found by name or path, changed by overrides, checked key by key, and written with every setting.

Every error names the file and the key. An override is a line of TOML such as `search.mu=0.1`; a value that is not TOML
is read as text, so that paths need no quotes. A recipe that `to_toml` writes is read by `load` as an equal recipe, even
when defaults have changed.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, fields, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from bayesbits.compression.spec import BACKENDS, Rule, Spec
from bayesbits.methods import METHODS, Method
from bayesbits.recipes.recipe import DataConfig, FloatConfig, ModelConfig, Recipe, TaskConfig
from bayesbits.recipes.toml_text import table_text
from bayesbits.training import FinetuneConfig, OptimizerConfig, SearchConfig

Table = dict[str, Any]
Override = str | Mapping[str, Any]
Part = TypeVar("Part")

PRESETS = {"paper": Spec.paper()} | {backend: Spec.for_backend(backend) for backend in BACKENDS}

TABLE_FILE = "latency_table.json"
"""The latency table in the folder of a run: beside a recipe it takes the place of the one that the recipe names."""

_NONE = "none"  # TOML has no null
_TEXTS = ("name", "description", "source")
_TABLES = ("data", "model", "task", "spec", "float", "search", "finetune")
_OPTIMIZER_KEYS = {entry.name for entry in fields(OptimizerConfig)}
_GROUPS = ("weights", "gates", "ranges")
_TOP_LEVEL_ONLY = {"seed"}  # one seed at the top of a recipe holds for all stages
_NOT_FOR_FLOAT = {"ranges", "distillation", "temperature"}  # float training has no quantizers and no teacher
_NEW_KEYS = {  # names that other tools use, or that recipes of earlier versions have
    "rate": "lr",
    "learning_rate": "lr",
    "kind": "optimizer",
    "standardise": "standardize",
    "examples": "num_examples",
    "criterion": "loss",
    "lambda": "mu",
    "bs": "batch_size",
}
_KEYS = {
    "data": {entry.name for entry in fields(DataConfig)},
    "model": {entry.name for entry in fields(ModelConfig)},
    "task": {entry.name for entry in fields(TaskConfig)},
    "spec": {entry.name for entry in fields(Spec)} | {"preset"},
    "float": {entry.name for entry in fields(FloatConfig)} - _TOP_LEVEL_ONLY - _NOT_FOR_FLOAT,
    "search": {entry.name for entry in fields(SearchConfig)} - _TOP_LEVEL_ONLY,
    "finetune": {entry.name for entry in fields(FinetuneConfig)} - _TOP_LEVEL_ONLY,
}


def names() -> tuple[str, ...]:
    """The names of the recipes that come with the package.

    Returns:
        The names in alphabetical order.

    Example::

        >>> from bayesbits import recipes
        >>> "digits-lenet5" in recipes.names()
        True
    """
    return tuple(
        sorted(path.name.removesuffix(".toml") for path in _shipped().iterdir() if path.name.endswith(".toml"))
    )


def load(
    recipe: str | Path | None, overrides: Iterable[Override] = (), *, model: str | None = None, data: str | None = None,
    task: str | None = None, loss: str | None = None, metric: str | None = None, budget: str | None = None,
    latency_table: str | Path | None = None,
) -> Recipe:  # fmt: skip
    """Read a recipe from the package or from a file, and change it.

    Args:
        recipe: The name of a recipe of the package, or the path of a TOML file. None is allowed where both `model` and
            `data` are given.
        overrides: Lines of TOML that replace settings, such as "search.mu=0.1", or tables such as
            {"search": {"mu": 0.1}}. They are applied last. With another `spec.method` the recipe's `ranges` are left
            out if either of the two methods brings an optimizer for its ranges, as "lsq" does; `ranges` that are given
            here hold for any method.
        model: A function "package.module:function" that replaces the recipe's `[model]`.
        data: A function "package.module:function" that replaces the recipe's `[data]`.
        task: The name of a task that replaces the recipe's `[task]`.
        loss: The loss of the task.
        metric: The metric of the task.
        budget: The most that the final network may cost, such as "0.5% bops" or "500 kB". It replaces the recipe's
            `search.mu`, `search.gates` and `search.budget`: the weight of the penalty and the rate of the gates follow
            from it.
        latency_table: The file with the latency table of the network, for a budget such as "2.5 ms".

    Returns:
        The recipe, with every setting checked.

    Raises:
        FileNotFoundError: If there is no such recipe and no such file.
        ValueError: If the file is not TOML, or a key or a value is wrong; the message names it.

    Example::

        >>> from bayesbits import recipes
        >>> recipe = recipes.load("digits-lenet5", ["search.mu=0.02"])
        >>> recipe.search.mu, recipe.model.name
        (0.02, 'lenet5')
    """
    if recipe is None and (model is None or data is None):
        raise ValueError("there is neither a recipe nor both a model and data of your own")
    table, source, name = _file(str(recipe)) if recipe is not None else ({}, "your model and data", str(model))
    for key, factory in (("model", model), ("data", data)):
        if factory is not None:
            table[key] = {"name": factory}
    if task is not None:
        table["task"] = {"name": task}
    chosen = {key: value for key, value in (("loss", loss), ("metric", metric)) if value is not None}
    _merge(table, {"task": chosen} if chosen else {})
    if budget is not None:
        search = table.get("search", {})
        kept = {key: value for key, value in search.items() if key not in ("mu", "gates")}
        table["search"] = {**kept, "budget": budget} if isinstance(search, dict) else search
    if latency_table is not None:
        _merge(table, {"search": {"latency_table": str(Path(latency_table).absolute())}})
    elif recipe is not None and "latency_table" in table.get("search", {}):
        beside = Path(recipe).parent / TABLE_FILE
        _merge(table, {"search": {"latency_table": str(beside.absolute())}} if beside.is_file() else {})
    changes = options_from(overrides)
    _leave_ranges_to_the_method(table, changes)
    _merge(table, changes)
    _check_keys(table, source)
    try:
        return _recipe(table, name)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _leave_ranges_to_the_method(table: Table, changes: Mapping[str, Any]) -> None:
    """Where another method is chosen, drop the optimizer of the ranges if it, or the recipe's own, brings one."""
    own, chosen = _method_in(table, Spec.method), _method_in(changes, None)
    if own is None or chosen is None or own is chosen or not (own.ranges or chosen.ranges):
        return
    for part in ("search", "finetune"):
        if isinstance(table.get(part), dict):
            table[part].pop("ranges", None)


def _method_in(table: Mapping[str, Any], default: str | None) -> Method | None:
    """The method of a recipe; None where there is none, or a wrong one, which is refused with the spec."""
    spec = table.get("spec")
    name = spec.get("method", default) if isinstance(spec, Mapping) else default
    return METHODS.get(name) if isinstance(name, str) else None


def options_from(overrides: Iterable[Override]) -> dict[str, Any]:
    """Overrides as one table; the tables that are given are left as they are."""
    table: Table = {}
    for one in overrides:
        _merge(table, _override(one) if isinstance(one, str) else deepcopy(dict(one)))
    return table


def to_toml(recipe: Recipe) -> str:
    """Write a recipe as TOML, with every setting.

    Args:
        recipe: The recipe.

    Returns:
        The text of a file from which `load` reads an equal recipe.

    Example::

        >>> from bayesbits import recipes
        >>> text = recipes.to_toml(recipes.load("digits-lenet5"))
        >>> text.splitlines()[0]
        'name = "digits-lenet5"'
    """
    return table_text(to_table(recipe))


def to_table(recipe: Recipe) -> dict[str, Any]:
    """The content of a recipe's file: plain values in tables, without what is None."""
    table = asdict(recipe)
    table["float"] = table.pop("float_training")
    for part, left_out in (
        ("float", _TOP_LEVEL_ONLY | _NOT_FOR_FLOAT),
        ("search", _TOP_LEVEL_ONLY),
        ("finetune", _TOP_LEVEL_ONLY),
    ):
        if table[part] is not None:
            table[part] = {key: value for key, value in table[part].items() if key not in left_out}
    if recipe.search.budget is not None:
        table["search"]["budget"] = str(recipe.search.budget)
        if recipe.search.budget.table is not None and recipe.search.latency_table is None:
            table["search"]["latency_table"] = TABLE_FILE  # in the folder of the run
    table["spec"]["residual_bits"] = table["spec"]["residual_bits"] or _NONE
    kept: dict[str, Any] = _without_none(table)
    return kept


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return list(value) if isinstance(value, tuple) else value


def _file(recipe: str) -> tuple[Table, str, str]:
    """The content of a recipe's file, its name in error messages, and the default name of the recipe."""
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
    if path.is_dir():
        hint = f"it is a folder, and the recipe of a run is {path / 'recipe.toml'}. "
    raise FileNotFoundError(
        f"there is no recipe {recipe!r}, and no such file: {hint}The package has {', '.join(names())}"
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
    """Merge a table into another; tables that both contain are merged too."""
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
    """A suggestion for an unknown key: its new name, the same name in another table, or one that is spelled alike."""
    word = _NEW_KEYS.get(key, key)
    if word in known:
        return f"did you mean {prefix}{word}? "
    places = [f"{table}.{name}" for table, names in _KEYS.items() for name in sorted(names)]
    groups = [place for place in places if place.split(".")[1] in _GROUPS and not place.startswith("spec.")]
    places += [f"{group}.{name}" for group in groups for name in sorted(_OPTIMIZER_KEYS)]
    same = [place for place in places if place.rpartition(".")[2] == word]
    own = [place for place in same if prefix and place.startswith(prefix)] or same
    words = [*sorted(known), *(old for old, new in _NEW_KEYS.items() if new in known)]
    nearest = difflib.get_close_matches(key, words, n=1)
    meant = own or [f"{prefix}{_NEW_KEYS.get(one, one)}" for one in nearest]
    return f"did you mean {' or '.join(meant)}? " if meant else ""


def _recipe(table: Table, name: str) -> Recipe:
    seed = table.get("seed", 0)
    return Recipe(
        data=_part("data", DataConfig, table["data"]),
        model=_part("model", ModelConfig, table["model"]),
        task=_part("task", TaskConfig, table.get("task", {})),
        spec=read_spec(table.get("spec", {})),
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
    """The configuration of a stage; options of an optimizer that are not given have the stage's own defaults."""
    default, table = cls(), _with_none(table)
    optimizers = {
        group: _part(f"{key}.{group}", partial(replace, getattr(default, group) or OptimizerConfig()), table[group])
        for group in _GROUPS
        if isinstance(table.get(group), dict)
    }
    return _part(key, cls, table | optimizers | {"seed": seed})


def _with_none(table: Table) -> Table:
    return {key: None if value == _NONE else value for key, value in table.items()}


def read_spec(table: Table) -> Spec:
    """The spec of a table `[spec]`; the preset of a runtime is the one for the activations that the table asks for."""
    options = _with_none(table)
    preset = options.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"[spec]: preset is {preset!r}; it is one of {', '.join(PRESETS)}")
    base = PRESETS[preset] if preset is not None else Spec()
    if preset in BACKENDS and "activations" in options:
        base = _part("spec", Spec.for_backend, {"backend": preset, "activations": options["activations"]})
    return _part("spec", partial(replace, base), options)
