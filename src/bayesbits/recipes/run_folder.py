"""The folder of a run: its files, and whether a run may write there.

recipe.toml          the recipe with every setting
float.safetensors    the weights of the float network, where the recipe trains one
plan.json            the bits of every tensor and the kept channels of every layer
topology.json        the structure of the network, for counting costs
model.safetensors    the final network: weights, ranges, and the fixed bits and channels
result.json          the metrics and the cost of the final network
metrics.jsonl        losses and evaluations during training, one JSON object per line
statistics.json      histograms of the final network's tensors, and the error by layer
verification.json    the result of verifying the deployed network, where it was verified
openvino.json        the same for OpenVINO and the portable file, where it was verified there
bench.json           time and size of the float network and of the ONNX files, where `bayesbits bench` measured them
report.html          a page about the run
latency_table.json   the latency table of a budget in milliseconds
front.json           the points of post-training
posttrain.json       the settings that these points were learned with
log.txt              what a run of a sweep printed
state.json           of a run that is not finished: its process, or the error that ended it
*.checkpoint         the state of each stage, to resume from
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_from_tensors
from torch import nn

from bayesbits.recipes.recipe import Recipe
from bayesbits.recipes.run_state import RUNNING, STATE, load_state
from bayesbits.recipes.toml import TABLE_FILE, load, to_table, to_toml
from bayesbits.training import TrainingError
from bayesbits.utils.files import write_atomically

RECIPE = "recipe.toml"
FLOAT = "float.safetensors"
PLAN = "plan.json"
TOPOLOGY = "topology.json"
MODEL = "model.safetensors"
RESULT = "result.json"
METRICS = "metrics.jsonl"
STATISTICS = "statistics.json"
VERIFICATION = "verification.json"
OPENVINO_VERIFICATION = "openvino.json"
BENCH = "bench.json"
REPORT = "report.html"
LATENCY_TABLE = TABLE_FILE
FRONT = "front.json"
POSTTRAIN = "posttrain.json"
LOG = "log.txt"
ABOUT_THE_PLAN = (RESULT, STATISTICS, VERIFICATION, OPENVINO_VERIFICATION, BENCH, REPORT)
"""The files that belong to one final plan."""
CHECKPOINTS = ("float.checkpoint", "search.checkpoint", "finetune.checkpoint")

# Settings that do not change what a run computes: they may differ when it is resumed.
_MAY_DIFFER = {"folder", "workers", "checkpoint_seconds", "log_steps", "evaluate_epochs", "compile", "cuda_graph"}
_MAY_DIFFER |= {"description", "source"}
_MAY_DIFFER |= {"latency_table"}  # a checkpoint compares what is in it


def check(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """Raise where the folder holds another run, where it is a file, or where it holds this run and `resume` is off."""
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"the folder to write to is {folder}, and {path} is a file; choose another by --output")
    if (folder / RECIPE).exists():
        if not resume:
            raise ValueError(
                f"{folder} holds a run of {load_recipe(folder).name} already; go on with it by --resume "
                f"(resume=True), for short {resume_command(folder)}, or choose another folder by --output"
            )
        found, wanted = (to_table(one) for one in (load_recipe(folder), recipe))
        difference = first_difference(found, wanted)
        if difference is not None:
            raise ValueError(
                f"{folder} holds another run: {difference}; choose another folder by --output, or go on with that run: "
                f"{resume_command(folder)}"
            )


def load_recipe(folder: Path) -> Recipe:
    """The recipe of the run in a folder."""
    try:
        return load(folder / RECIPE)
    except ValueError as error:
        raise ValueError(
            f"{error}. If an earlier version of bayesbits wrote this run, rename the keys of its {RECIPE} as "
            "CHANGELOG.md says, or run the recipe again in another folder"
        ) from error


def prepare(folder: Path, recipe: Recipe) -> None:
    """Make the folder and write the recipe into it, which marks it as the folder of this run."""
    folder.mkdir(parents=True, exist_ok=True)
    budget = recipe.search.budget
    if budget is not None and budget.table is not None:
        budget.table.save(folder / LATENCY_TABLE)
    write(folder / RECIPE, to_toml(recipe))


def resume_command(folder: Path) -> str:
    """The command that resumes the search in a folder."""
    return f"bayesbits search {quote(str(folder / RECIPE))} --resume"


def unfinished(folder: Path, missing: str) -> str:
    """A message: why a folder holds no finished run, and what to do; `missing` is the file that is not there."""
    if not (folder / RECIPE).is_file():
        return (
            f"{folder} holds no finished run: there is no {missing}. `bayesbits search` writes it at its end, "
            "`bayesbits posttrain` with --budget"
        )
    begun = [name.removesuffix(".checkpoint") for name in CHECKPOINTS if (folder / name).is_file()]
    if (folder / POSTTRAIN).is_file() and "search" not in begun:
        return (
            f"{folder} holds points of `bayesbits posttrain`, and no final network: there is no {missing}. The same "
            "command with --budget LIMIT makes a plan within it final"
        )
    stage = f"its last checkpoint is of the stage {begun[-1]!r}" if begun else "there is no checkpoint yet"
    state = load_state(folder)
    why = "it was interrupted, or is still running" if state is None else state.words
    way_out = f"Go on with: {resume_command(folder)}"
    if state is not None and state.stage:
        stage, way_out = f"{state.stage} has no point yet", f"Go on with: {state.command}"
    if state is not None and state.status == RUNNING:
        way_out = f"`bayesbits watch {quote(str(folder))}` shows how far it is"
    end = "" if why.endswith((".", "!", "?")) else "."
    return f"{folder} holds a run that is not finished ({stage}, and there is no {missing}): {why}{end} {way_out}"


def write(path: Path, content: str | bytes) -> None:
    """Write a file of a run in one piece; where that fails, the file before it is intact."""
    try:
        write_atomically(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise TrainingError(
            f"{path} could not be written ({error}); the file before it is intact. Make room and start again: "
            "with resume=True a run goes on where it was"
        ) from error


def clear(folder: Path) -> None:
    """Remove the files of a search, and nothing else."""
    for name in (
        RESULT,
        RECIPE,
        FLOAT,
        PLAN,
        TOPOLOGY,
        MODEL,
        METRICS,
        STATISTICS,
        VERIFICATION,
        OPENVINO_VERIFICATION,
        BENCH,
        REPORT,
        LATENCY_TABLE,
        STATE,
        *CHECKPOINTS,
    ):
        (folder / name).unlink(missing_ok=True)


def save_weights(model: nn.Module, path: Path) -> None:
    """Write a network's state_dict; tied weights are written for each of their names."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    write(path, bytes_from_tensors(state))


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the state_dict that `save_weights` wrote into a network."""
    try:
        model.load_state_dict(tensors_from_bytes(path.read_bytes()))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, or not of this network: {error}") from error


def first_difference(found: Any, wanted: Any, where: str = "") -> str | None:
    """The first setting in which two tables differ and must not, in words; None where there is none."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            if key not in _MAY_DIFFER:
                place = f"{where}.{key}" if where else str(key)
                difference = first_difference(found.get(key), wanted.get(key), place)
                if difference is not None:
                    return difference
        return None
    return None if found == wanted else f"{where} was {found!r} there and is {wanted!r} now"
