"""`bayesbits export`, `verify` and `bench`: from the folder of a run to files that run in integers."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from bayesbits.cli.console import results, say
from bayesbits.cli.extras import require_extras
from bayesbits.deploy import DeployedNetwork, VerificationError, deploy, export_onnx, save
from bayesbits.deploy import verify as verify_file
from bayesbits.deploy.onnx.export import FORMS
from bayesbits.deploy.onnx.float_model import export_float_onnx
from bayesbits.deploy.onnx.latency import measure_latencies
from bayesbits.recipes.data import first_examples
from bayesbits.recipes.run import FinishedRun, restore
from bayesbits.recipes.run_folder import VERIFICATION
from bayesbits.training.batches import to_device

DEPLOYED, FLOAT = "deployed", "float.onnx"

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")]


def export(folder: Folder) -> None:
    """Write the integer network of a run: DIR/deployed, DIR/fast.onnx and DIR/compact.onnx."""
    _, small = _write(folder)
    results().print(str(small), highlight=False, markup=False)


def verify(
    folder: Folder, inputs: Annotated[int, typer.Option(min=1, help="How many test inputs to compare.")] = 1000
) -> None:
    """Prove on test inputs that the trained network, the integer network and both ONNX files agree.

    Ends with an error that names the first place that differs. What was found is in DIR/verification.json either way.
    """
    (folder / VERIFICATION).unlink(missing_ok=True)  # whatever happens now, it is no longer what was found
    run, small = _write(folder)
    batch = _test_inputs(run, inputs)
    for form in FORMS:
        try:
            found = verify_file(run.compressor, small, _file(folder, form), batch)
        except VerificationError as error:
            if error.found is not None:
                error.found.save(folder / VERIFICATION)
                error.add_note(f"{_file(folder, form)} is not proven; what was found is in {folder / VERIFICATION}")
            raise
        results().print(f"{form}\n{found}\n", highlight=False, markup=False)
    found.save(folder / VERIFICATION)


def bench(folder: Folder, rounds: Annotated[int, typer.Option(help="How often every file runs.")] = 20) -> None:
    """Time and size of the float network and of both ONNX files of a run in onnxruntime."""
    run, small = _write(folder)
    example = to_device(run.loaders.example, torch.device("cpu"))
    files = {"float": folder / FLOAT} | {form: _file(folder, form) for form in FORMS}
    relative = run.compressor.cost(run.plan).relative_bops
    export_float_onnx(run.compressor.detach().cpu(), example, files["float"])
    latencies = measure_latencies(files, small, example, rounds=rounds)
    base = {(one.threads, one.batch): one.seconds for one in latencies if one.name == "float"}
    table = Table("file", "threads", "batch", "ms", "times float", "MB", "% of BOPs")
    for one in latencies:
        bops = 100.0 if one.name == "float" else relative
        speed = base[one.threads, one.batch] / one.seconds
        numbers = (f"{one.seconds * 1e3:.2f}", f"{speed:.2f}", f"{one.bytes / 1e6:.2f}", f"{bops:.3g}")
        table.add_row(one.name, str(one.threads or "all"), str(one.batch), *numbers)
    results().print(table)


def _write(folder: Path) -> tuple[FinishedRun, DeployedNetwork]:
    require_extras("writing ONNX files", "onnx")
    run = restore(folder, "cpu")
    small = deploy(run.compressor)
    save(small, folder / DEPLOYED)
    for form in FORMS:
        export_onnx(small, run.loaders.example, _file(folder, form), form)
        say(f"wrote {_file(folder, form)}")
    return run, small


def _file(folder: Path, form: str) -> Path:
    return folder / f"{form}.onnx"


def _test_inputs(run: FinishedRun, count: int) -> Any:
    """The first inputs of the test set."""
    return first_examples((to_device(inputs, torch.device("cpu")) for inputs, _ in run.loaders.test), count)
