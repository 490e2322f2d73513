"""The runs of a sweep: recipes with every combination of their settings, all checked before anything runs.

Recipes are given by name or file. A file may also list runs, one table `[[runs]]` for each group of them:

    [[runs]]
    recipe = "cifar10-vgg7"
    seeds = [0, 1, 2]
    set.search.epochs = 300           # one value, for all runs of this group
    grid.search.mu = [0.01, 0.1]      # one run for each value
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from bayesbits.recipes import Recipe, names
from bayesbits.recipes.run import check_recipe
from bayesbits.recipes.toml import Override, to_table
from bayesbits.sweeps.settings import Axis, Setting, axis, leaves, value_text

SEED, METHOD, BUDGET = ("seed",), ("spec", "method"), ("budget",)
_RUNS, _GROUP_KEYS = "runs", ("recipe", "seeds", "methods", "budgets", "set", "grid")
_LISTS = {"seeds": SEED, "methods": METHOD, "budgets": BUDGET}
_MOST_ERRORS, _MOST_CHARACTERS = 10, 48

Load = Callable[[str | None, Sequence[Override], str | None], Recipe]
"""Reads a recipe with its overrides and its budget."""


@dataclass(frozen=True)
class Group:
    """Runs of one recipe: settings that they share, and the axes of their grid."""

    recipe: str | None
    settings: tuple[Setting, ...] = ()
    axes: tuple[Axis, ...] = ()

    def with_axes(self, axes: Iterable[Axis]) -> Group:
        """The group with further axes, which replace its own ones of the same keys."""
        added = tuple(axes)
        keys = {one.key for one in added}
        return Group(self.recipe, self.settings, (*(one for one in self.axes if one.key not in keys), *added))

    def combinations(self) -> Iterable[tuple[Setting, ...]]:
        """The settings of every run; the first seed comes with all other settings before the second one."""
        seeds = [one for one in self.axes if one.key == "seed"]
        return product(*(one.settings for one in (*seeds, *(one for one in self.axes if one.key != "seed"))))


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    """A name that no other run of the sweep has; that of a new folder."""
    recipe: Recipe
    settings: Mapping[str, Any]
    """The settings in which the runs of this recipe differ, by key, without the seed."""
    label: str
    """These settings, the seed, and the recipe where there are several, in a few words."""


def read_groups(recipes: Sequence[str | None]) -> list[Group]:
    """The groups of recipes and of files with `[[runs]]`, in their order."""
    return [group for recipe in recipes for group in _groups(recipe)]


def _groups(recipe: str | None) -> list[Group]:
    path = Path(recipe or "")
    if recipe is None or recipe in names() or not path.is_file():
        return [Group(recipe)]
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    if _RUNS not in table:
        return [Group(recipe)]
    other = [key for key in table if key != _RUNS]
    if other or not isinstance(table[_RUNS], list) or not all(isinstance(entry, dict) for entry in table[_RUNS]):
        wrong = f"it has {other[0]!r} beside" if other else "it has another form of"
        raise ValueError(f"{path} is neither a recipe nor a file of runs: {wrong} the tables [[runs]]")
    return [_group(entry, path, number) for number, entry in enumerate(table[_RUNS], start=1)]


def _group(entry: Mapping[str, Any], path: Path, number: int) -> Group:
    where = f"{path}, [[runs]] number {number}"
    for key in entry:
        if key not in _GROUP_KEYS:
            raise ValueError(f"{where}: {key} is not known; it has {', '.join(_GROUP_KEYS)}")
    if not isinstance(entry.get("recipe"), str):
        raise ValueError(f"{where}: recipe is missing, the name of a recipe or its file")
    for key in ("set", "grid"):
        if not isinstance(entry.get(key, {}), dict):
            raise ValueError(f"{where}: {key} is {entry[key]!r}; it is a table, such as {key}.search.mu = ...")
    lists = [(key, _LISTS[key], entry[key]) for key in _LISTS if key in entry]
    lists += [(f"grid.{one.key}", one.path, one.value) for one in leaves(entry.get("grid", {}))]
    for key, _, values in lists:
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}: {key} is {values!r}; it is a list of values")
    beside = path.parent / entry["recipe"]
    recipe = str(beside) if entry["recipe"] not in names() and beside.is_file() else entry["recipe"]
    try:
        axes = tuple(axis(place, values) for _, place, values in lists)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return Group(recipe, tuple(leaves(entry.get("set", {}))), axes)


def make_runs(groups: Iterable[Group], load: Load) -> list[SweepRun]:
    """All runs, each with its recipe; a ValueError lists what is wrong. Equal runs of several groups are one."""
    found: list[tuple[Recipe, dict[str, Any]]] = []
    tables: list[dict[str, Any]] = []
    errors: dict[str, None] = {}
    for group in groups:
        for chosen in group.combinations():
            settings = (*group.settings, *chosen)
            try:
                recipe = _load(load, group.recipe, settings)
            except (ValueError, FileNotFoundError) as error:
                errors[str(error)] = None
                continue
            if to_table(recipe) not in tables:
                tables.append(to_table(recipe))
                found.append((recipe, {one.key: one.value for one in settings if one.path != SEED}))
    if errors:
        shown = list(errors)[:_MOST_ERRORS]
        more = [f"and {len(errors) - len(shown)} more"] if len(errors) > len(shown) else []
        raise ValueError("\n".join(["no run was started, as the sweep cannot be run as it is:", *shown, *more]))
    return _named(found)


def _load(load: Load, recipe: str | None, settings: Sequence[Setting]) -> Recipe:
    budget = next((one.value for one in settings if one.path == BUDGET), None)
    loaded = load(recipe, [one.table for one in settings if one.path != BUDGET], budget)
    check_recipe(loaded)
    return loaded


def _named(found: Sequence[tuple[Recipe, dict[str, Any]]]) -> list[SweepRun]:
    """Runs with names of the settings in which they differ."""
    alike: dict[str, list[dict[str, str]]] = {}
    for recipe, settings in found:
        alike.setdefault(recipe.name, []).append({key: value_text(value) for key, value in settings.items()})
    texts = {
        name: {key: {settings.get(key) for settings in several} for key in dict.fromkeys(chain(*several))}
        for name, several in alike.items()
    }
    runs: list[SweepRun] = []
    taken: set[str] = set()
    for recipe, settings in found:
        varying = {key: value for key, value in settings.items() if len(texts[recipe.name][key]) > 1}
        words = [f"{key}={value_text(value)}" for key, value in zip(short_keys(varying), varying.values(), strict=True)]
        words.append(f"seed={recipe.seed}")
        name = _unique("-".join(map(_file_name, [recipe.name, *words])), taken)
        label = ", ".join([recipe.name] * (len(alike) > 1) + words)
        runs.append(SweepRun(name, recipe, varying, label))
    return runs


def short_keys(keys: Iterable[str]) -> list[str]:
    """Every key without "search." and "spec.", where most settings are; the whole key where two would be the same."""
    whole = list(keys)
    short = [key.removeprefix("search.").removeprefix("spec.") for key in whole]
    return [one if short.count(one) == 1 else key for key, one in zip(whole, short, strict=True)]


def _file_name(text: str) -> str:
    """Text with characters that are safe in the name of a folder, and not too many of them."""
    return re.sub(r"[^\w.,+=%-]+", "_", text).strip("_")[:_MOST_CHARACTERS]


def _unique(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found.lower() in taken:  # some file systems do not distinguish capitals
        number += 1
        found = f"{name}-{number}"
    taken.add(found.lower())
    return found
