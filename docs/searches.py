"""The searches among the results: files `RECIPE-SETTINGS-seedN.json`, grouped over seeds.

Those with `validation` in their names had images held back to choose settings by.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesbits.recipes import load, names
from bayesbits.sweeps.estimate import Estimate

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments" / "results"

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Search:
    """The results of one setting, one for each seed."""

    name: str
    """The name of the files without the seed."""
    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """The result of the first seed."""
        return self.results[0]

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.results)

    @property
    def recipe(self) -> str:
        """The recipe that was run."""
        return str(self.first["recipe"])

    @property
    def base(self) -> str:
        """The recipe with the paper's settings for the same network and data."""
        return self.recipe.removesuffix("-distilled")

    @property
    def plain(self) -> bool:
        """Whether nothing but the epochs and the cost differs from the recipe."""
        setting = self.name.removeprefix(self.recipe)
        return re.fullmatch(r"(-\d+epochs)?-(mu|budget)[\d.]+", setting) is not None

    @property
    def choosing(self) -> bool:
        """Whether images were held back from training to choose settings by."""
        return "validation" in self.name

    @cached_property
    def accuracy(self) -> Estimate:
        """On the test images, in percent."""
        return self.estimate(lambda result: result["accuracy"])

    @cached_property
    def cost(self) -> Estimate:
        """The relative bit operations in percent."""
        return self.estimate(lambda result: result["relative_bops"])

    @cached_property
    def float_accuracy(self) -> Estimate | None:
        """Of the float networks that the searches started from; None where one started from scratch."""
        values = [result["float_accuracy"] for result in self.results]
        return None if None in values else Estimate.of(values)

    @cached_property
    def held_back(self) -> float | None:
        """The mean accuracy on images held back from training; None where it is not in the files."""
        values = [result.get("validation_accuracy") for result in self.results]
        return None if None in values else Estimate.of(values).mean

    @property
    def epochs(self) -> str:
        """Those of the float network, of the search and of fine-tuning."""
        numbers = [self.first["float_epochs"], self.first["epochs"], self.first["finetune_epochs"]]
        return " + ".join(str(number) for number in numbers if number)

    @property
    def seconds(self) -> str:
        """The mean time of training on a GPU, with that of the float network beside it where it is known.

        That on a CPU is not told: other work runs beside it.
        """
        if "cuda" not in self.first["device"]:
            return "CPU"
        total = self.estimate(lambda result: result["seconds"]).mean
        stages = [result.get("stage_seconds", {}).get("float") for result in self.results]
        beside = "" if None in stages else f", float {Estimate.of(stages).mean:.0f} of them"
        return f"{total:.0f}{beside}"

    def estimate(self, value: Callable[[Result], float]) -> Estimate:
        """The mean of a value over the seeds, with its standard error."""
        return Estimate.of(value(result) for result in self.results)

    @property
    def command(self) -> str:
        """The command of the first seed: that in the file, or what can be told from the other fields."""
        if "command" in self.first:
            return str(self.first["command"])
        words, overrides = ["bayesbits", "search", self.recipe], []
        rest = self.name.removeprefix(self.recipe)
        budget = re.search(r"-budget(\d+\.\d+)", rest)
        if budget:
            words += ["--budget", f"{float(budget[1]):g}% bops"]
            rest = rest.replace(budget[0], "")
        elif (given := f"-mu{self.first['mu']:g}") in rest:
            overrides.append(f"search.mu={self.first['mu']:g}")
            rest = rest.replace(given, "")
        if self.recipe in names():
            own = load(self.recipe)
            if own.data.name != "digits":  # those come with a dependency
                overrides.insert(0, "data.folder=FOLDER")
            if self.first["epochs"] != own.search.epochs:
                overrides.append(f"search.epochs={self.first['epochs']}")
                rest = rest.replace(f"-{self.first['epochs']}epochs", "")
            if own.float_training is not None and self.first["float_epochs"] != own.float_training.epochs:
                overrides.append(f"float.epochs={self.first['float_epochs']}")
        words += [word for override in [*overrides, f"seed={self.first['seed']}"] for word in ("--set", override)]
        also = f"  # also {rest.strip('-')}: see experiments/LOG.md" if rest else ""
        return shlex.join(words) + also


def searches(folder: Path = EXPERIMENTS) -> list[Search]:
    """All searches, by name; files of other kinds are passed over."""
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(result, dict) and "relative_bops" in result and result.get("accuracy") is not None:
            found.setdefault(re.sub(r"-seed\d+$", "", path.stem), []).append(result)
    return [Search(name, tuple(sorted(results, key=lambda one: one["seed"]))) for name, results in found.items()]


def accuracy_text(estimate: Estimate) -> str:
    """A mean in percent with its standard error, where there is one."""
    return _text(estimate, 2)


def cost_text(estimate: Estimate) -> str:
    """Relative bit operations with their standard error, where there is one."""
    return _text(estimate, 3)


def _text(estimate: Estimate, digits: int) -> str:
    error = "" if estimate.error is None else f" ± {estimate.error:.{digits}f}"
    return f"{estimate.mean:.{digits}f}{error}%"


def seeds_text(number: int) -> str:
    """A number of seeds; one seed has no standard error."""
    return "1 seed" if number == 1 else f"{number} seeds"
