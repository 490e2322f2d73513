"""The table of ablations: the runs of experiments/ablations.toml, with the results that there are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesbits.recipes import Recipe, load
from bayesbits.recipes.toml import Override
from bayesbits.sweeps.grid import make_runs, read_groups
from docs.searches import EXPERIMENTS, ROOT, Search, accuracy_text, cost_text, searches, seeds_text
from experiments.keep import name_of

ABLATIONS = ROOT / "experiments" / "ablations.toml"


def ablation_rows(folder: Path = EXPERIMENTS, path: Path = ABLATIONS) -> list[dict[str, Any]]:
    """A row for each setting, "not run" where there is no result, with the difference to the first of its network."""
    found = {search.name: search for search in searches(folder)}
    whole: dict[str, Search | None] = {}
    rows = []
    for label, name, network in planned(path):
        search = found.get(name)
        first = whole.setdefault(network, search)
        start = None if search is None else search.float_accuracy
        rows.append(
            {
                "what is changed": label,
                "accuracy": "not run" if search is None else accuracy_text(search.accuracy),
                "points": "" if search is None or search is first else difference(search, first),
                "bit operations": "" if search is None else cost_text(search.cost),
                "float": "" if start is None else accuracy_text(start),
                "seeds": "" if search is None else seeds_text(search.seeds),
                "search": f"`{name}`",
            }
        )
    return rows


def planned(path: Path = ABLATIONS) -> list[tuple[str, str, str]]:
    """What every setting is called, the name of its files of results, and its network."""

    def read(recipe: str | None, overrides: Sequence[Override], budget: str | None) -> Recipe:
        return load(recipe, overrides, budget=budget)

    runs = [run.recipe for run in make_runs(read_groups([str(path)]), read)]
    first = min(recipe.seed for recipe in runs)
    return [(one.description, name_of(one), one.model.name) for one in runs if one.seed == first]


def difference(search: Search, first: Search | None) -> str:
    """By how many points of accuracy a search differs from another one, with its error where both have one."""
    if first is None:
        return ""
    errors = (search.accuracy.error, first.accuracy.error)
    error = "" if None in errors else f" ± {sum(one**2 for one in errors if one is not None) ** 0.5:.2f}"
    return f"{search.accuracy.mean - first.accuracy.mean:+.2f}{error}"
