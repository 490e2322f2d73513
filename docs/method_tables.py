"""The tables of other methods that were trained here: all rows, and fixed widths beside ours at their cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bayesbits.sweeps.estimate import Estimate
from docs.evidence import TITLES, Row, Table, published
from docs.pareto import OUR_TITLE, MethodKey, is_ours, is_outdated, mean_of, method_runs
from docs.searches import EXPERIMENTS, accuracy_text, cost_text, seeds_text

COLUMNS = (
    "method", "setting", "seeds", "epochs", "accuracy", "bit operations", "with 8-bit ends", "ours at no more cost",
    "seconds an epoch", "in integers",
)  # fmt: skip
AT_COST = f"{OUR_TITLE} at the cost of "


def methods(folder: Path = EXPERIMENTS) -> list[Table]:
    """A table for every recipe that other methods were trained in, as means over seeds, beside published points."""
    found = []
    for path in sorted(folder.glob("methods-*.json")):
        runs, recipe = method_runs(path), path.stem.removeprefix("methods-")
        rows = [_row(key, runs) for key in sorted(runs, key=lambda key: (key[1], key[0]))]
        commands = {run["command"]: None for own in runs.values() for run in own}
        notes = _notes(runs)
        found.append(Table(f"Recipe {recipe}", [*rows, *published(recipe, COLUMNS)], notes, list(commands)))
    return found


def _notes(runs: Mapping[MethodKey, Sequence[Row]]) -> list[str]:
    """What was changed after rows were run, which have a star, and the devices that they ran on."""
    names: dict[str, dict[str, None]] = {}
    for (name, *_), own in runs.items():
        for run in filter(is_outdated, own):
            names.setdefault(run["outdated"], {})[name] = None
    devices = dict.fromkeys(run["device"] for own in runs.values() for run in own)
    return [f"\\* {', '.join(own)}: {reason}" for reason, own in names.items()] + [f"Device: {', '.join(devices)}"]


def _row(key: MethodKey, runs: Mapping[MethodKey, Sequence[Row]]) -> Row:
    name, setting, epochs = key
    first = runs[key][0]
    narrow_ends = first["relative_bops_8_bit_ends"]
    return {
        "method": name + " \\*" * any(map(is_outdated, runs[key])),
        "setting": setting,
        "seeds": seeds_text(len(runs[key])),
        "epochs": epochs,
        "accuracy": accuracy_text(mean_of(runs[key], "accuracy")),
        "bit operations": cost_text(mean_of(runs[key], "relative_bops")),
        "with 8-bit ends": "" if narrow_ends is None else f"{narrow_ends:.3f}%",
        "ours at no more cost": "" if is_ours(name) else _ours_within(key, runs),
        "seconds an epoch": _seconds(first),
        "in integers": first["deployed"].removesuffix(" in integers") if first["deployed"][0].isdigit() else "no",
    }


def _seconds(run: Row) -> str:
    """The seconds of an epoch; those on a CPU say so, as most rows ran on a GPU."""
    seconds = run["seconds_an_epoch"]
    return "" if seconds is None else f"{seconds:g}" + " (CPU)" * run["device"].endswith("(cpu)")


def _ours_within(key: MethodKey, runs: Mapping[MethodKey, Sequence[Row]]) -> str:
    """The best of ours with the same setting and epochs that costs no more."""
    limit = mean_of(runs[key], "relative_bops").mean
    own = [
        (mean_of(found, "accuracy"), mean_of(found, "relative_bops"))
        for (name, *same), found in runs.items()
        if is_ours(name) and same == list(key[1:]) and not any(map(is_outdated, found))
    ]
    within = [(accuracy, cost) for accuracy, cost in own if cost.mean <= limit]
    if not within:
        return "-" if own else "not run"
    accuracy, cost = max(within, key=lambda point: point[0].mean)
    return f"{accuracy_text(accuracy)} at {cost_text(cost)}"


def learned_beside_fixed(folder: Path = EXPERIMENTS) -> list[Row]:
    """Ours with the cost of a method of fixed widths as its budget, beside that method: the same seeds of both."""
    rows = []
    for path in sorted(folder.glob("methods-*.json")):
        runs, recipe = method_runs(path), path.stem.removeprefix("methods-")
        for (name, setting, epochs), own in sorted(runs.items(), key=lambda one: (one[0][1:], one[0][0])):
            beside = runs.get((name.removeprefix(AT_COST), setting, epochs), ())
            if name.startswith(AT_COST) and not any(map(is_outdated, (*own, *beside))):
                rows += _pair(TITLES.get(recipe, recipe), name.removeprefix(AT_COST), own, beside)
    return rows


def _pair(network: str, fixed: str, ours: Sequence[Row], theirs: Sequence[Row]) -> list[Row]:
    """A row of the seeds that both have; none without such."""
    of_fixed = {run["seed"]: run for run in theirs}
    learned = [run for run in ours if run["seed"] in of_fixed]
    if not learned:
        return []
    same = [of_fixed[run["seed"]] for run in learned]
    assert all(one["relative_bops"] <= other["relative_bops"] for one, other in zip(learned, same, strict=True)), fixed
    gained = Estimate.of(one["accuracy"] - other["accuracy"] for one, other in zip(learned, same, strict=True))
    return [{
        "network": network,
        "setting": learned[0]["setting"],
        "epochs": learned[0]["epochs"],
        "seeds": seeds_text(len(learned)),
        "fixed widths": fixed,
        "their cost": cost_text(mean_of(same, "relative_bops")),
        "their accuracy": accuracy_text(mean_of(same, "accuracy")),
        "our cost": cost_text(mean_of(learned, "relative_bops")),
        "our accuracy": accuracy_text(mean_of(learned, "accuracy")),
        "difference, points": f"{gained.mean:+.2f}" + ("" if gained.error is None else f" ± {gained.error:.2f}"),
    }]  # fmt: skip
