"""Folders of finished runs, written by hand, and workers that train nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bayesbits import recipes
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.run_folder import prepare
from bayesbits.sweeps.grid import SweepRun, make_runs, read_groups
from bayesbits.sweeps.settings import read_axes
from bayesbits.sweeps.workers import Ending, Outcome


def made_runs(*texts: str, recipe: str = "digits-lenet5") -> list[SweepRun]:
    """The runs of a grid."""
    groups = [group.with_axes(read_axes(texts)) for group in read_groups([recipe])]
    return make_runs(groups, lambda name, overrides, budget: recipes.load(name, overrides, budget=budget))


def finish_run(folder: Path, recipe: recipes.Recipe, accuracy: float = 97.0, relative_bops: float = 1.0) -> None:
    """Write what a finished run leaves, as far as a sweep reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, recipe)
    result = recipes.Result(
        recipe=recipe.name, method="bayesian_bits", mu=recipe.search.mu or 0.0, seed=recipe.seed, epochs=1,
        float_epochs=1, finetune_epochs=1, accuracy=accuracy, float_accuracy=98.0, relative_bops=relative_bops,
        paper_relative_bops=relative_bops, weight_bytes=1000, float_weight_bytes=4000, layers=[], seconds=60.0,
        device="abacus", versions={}, metrics=(Score("accuracy", accuracy, 98.0, "%", True),),
    )  # fmt: skip
    result.save(folder / "result.json")
    (folder / "report.html").write_text("a page")


def with_metric(folder: Path, **changes: object) -> None:
    """Change the main metric of a result."""
    result = recipes.Result.load(folder / "result.json")
    changed = replace(result, accuracy=None, metrics=(replace(result.scores[0], **changes),))  # type: ignore[arg-type]
    changed.save(folder / "result.json")


class ScriptedWorkers:
    """Workers that end every run at the next look, as the list of its outcomes says; the default is to finish it."""

    def __init__(self, jobs: int, outcomes: dict[str, list[Outcome]] | None = None) -> None:
        self.jobs, self.outcomes = jobs, outcomes or {}
        self.running: list[Path] = []
        self.started: list[str] = []
        self.most = 0
        self.stops: list[bool] = []
        self.holds = False
        """Whether runs go on until they are stopped."""

    @property
    def free(self) -> int:
        return self.jobs - len(self.running)

    def start(self, folder: Path) -> None:
        self.running.append(folder)
        self.started.append(folder.name)
        self.most = max(self.most, len(self.running))

    def finished(self) -> list[tuple[Path, Outcome]]:
        if self.holds and not self.stops:
            return []
        ended = [(folder, self._outcome(folder)) for folder in self.running]
        self.running = []
        return ended

    def _outcome(self, folder: Path) -> Outcome:
        if self.stops:
            return Outcome(Ending.INTERRUPTED, "stopped")
        planned = self.outcomes.get(folder.name, [])
        outcome = planned.pop(0) if planned else Outcome(Ending.DONE)
        if outcome.ending is Ending.DONE and outcome.reason != "nothing":
            finish_run(folder, recipes.load(folder / "recipe.toml"))
        return outcome

    def stop(self, *, now: bool = False) -> None:
        self.stops.append(now)

    def close(self) -> None:
        pass
