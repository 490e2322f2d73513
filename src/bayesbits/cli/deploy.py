"""Runs `bayesbits export`, `verify` and `bench`: from a finished run to files that run in integers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from bayesbits.cli.console import output_console, print_line, print_status
from bayesbits.deploy import DeployedNetwork, VerificationError, deploy, export_onnx, save, verify
from bayesbits.deploy.onnx.export import FORMS, export_float_onnx
from bayesbits.deploy.onnx.latency import measure_latencies
from bayesbits.deploy.onnx.layer_times import LayerTime, measure_layer_times
from bayesbits.deploy.onnx.measure import network_ms
from bayesbits.deploy.onnx.runtime import machine
from bayesbits.recipes.data import first_examples
from bayesbits.recipes.process import is_first_process
from bayesbits.recipes.result import Result
from bayesbits.recipes.run import FinishedRun, restore
from bayesbits.recipes.run_folder import BENCH, RESULT, VERIFICATION
from bayesbits.records.bench import Bench, FileTime, KernelTime
from bayesbits.utils.batches import to_device
from bayesbits.utils.optional_packages import require_extras

DEPLOYED, FLOAT = "deployed", "float.onnx"


def run_export(folder: Path) -> None:
    """Write the integer network and both ONNX files, and show the network."""
    _, network = _write(folder)
    print_line(str(network))


def run_verify(folder: Path, num_examples: int) -> None:
    """Compare both ONNX files with the trained network, and write the findings."""
    (folder / VERIFICATION).unlink(missing_ok=True)  # old findings must not remain if this verification breaks off
    run, network = _write(folder)
    batch = _test_inputs(run, num_examples)
    for form in FORMS:
        try:
            found = verify(run.compressor, network, _onnx_file(folder, form), batch)
        except VerificationError as error:
            if error.found is not None:
                error.found.save(folder / VERIFICATION)
                error.add_note(
                    f"{_onnx_file(folder, form)} is not proven equal; the findings are in {folder / VERIFICATION}"
                )
            raise
        print_line(f"{form}\n{found}\n")
    found.save(folder / VERIFICATION)


def run_bench(folder: Path, rounds: int) -> None:
    """Show time and size of the float network and of both ONNX files, and keep them in the folder."""
    run, network = _write(folder)
    example = to_device(run.loaders.example, torch.device("cpu"))
    files = {"float": folder / FLOAT} | {form: _onnx_file(folder, form) for form in FORMS}
    relative_bops, topology = run.compressor.cost(run.plan).relative_bops, run.compressor.topology
    export_float_onnx(run.compressor.detach().cpu(), example, files["float"])
    latencies = measure_latencies(files, network, example, rounds=rounds)
    float_seconds = {(one.threads, one.batch): one.seconds for one in latencies if one.name == "float"}
    table = Table("file", "threads", "batch", "ms", "times float", "MB", "% of BOPs")
    for one in latencies:
        bops = 100.0 if one.name == "float" else relative_bops
        speed = float_seconds[one.threads, one.batch] / one.seconds
        numbers = (f"{one.seconds * 1e3:.2f}", f"{speed:.2f}", f"{one.bytes / 1e6:.2f}", f"{bops:.3g}")
        table.add_row(one.name, str(one.threads or "all"), str(one.batch), *numbers)
    output_console().print(table)
    layers = measure_layer_times(files["float"], files["fast"], network, topology, example, rounds=rounds)
    _print_slower_layers(layers)
    found = machine()
    Bench(
        cpu=found.cpu,
        runtime=found.runtime,
        rounds=rounds,
        files=tuple(FileTime(one.name, one.threads, one.batch, one.seconds, one.bytes) for one in latencies),
        layers=tuple(KernelTime(one.layer, one.kernel, one.seconds, one.float_seconds) for one in layers),
    ).save(folder / BENCH)
    print_status(f"wrote {folder / BENCH}, which the report shows")


def _print_slower_layers(layers: Sequence[LayerTime]) -> None:
    """Name the layers that take longer in integers than in float."""
    slower = sorted((one for one in layers if one.slower), key=lambda one: one.float_seconds - one.seconds)
    print_line(
        f"{len(layers) - len(slower)} of {len(layers)} layers take no longer than in float (one thread, batch 1, "
        "without quantizers)"
    )
    if slower:
        table = Table("slower than in float", "kernel", "ms", "ms in float")
        for one in slower:
            table.add_row(one.layer, one.kernel, f"{one.seconds * 1e3:.3f}", f"{one.float_seconds * 1e3:.3f}")
        output_console().print(table)


def with_measured_latency(result: Result, folder: Path) -> Result:
    """The result of a run; where a latency was predicted, the files are written, and the measured latency is added."""
    if result.latency_ms is None or not is_first_process():
        return result
    _write(folder)
    return Result.load(folder / RESULT)


def _write(folder: Path) -> tuple[FinishedRun, DeployedNetwork]:
    """Deploy the network of a run, and write it and both ONNX files into the folder."""
    require_extras("writing ONNX files", "onnx")
    run = restore(folder, "cpu")
    network = deploy(run.compressor)
    for line in network.shapes():
        print_status(line)
    save(network, folder / DEPLOYED)
    for form in FORMS:
        export_onnx(network, run.loaders.example, _onnx_file(folder, form), form)
        print_status(f"wrote {_onnx_file(folder, form)}")
    threads = run.result.latency_threads
    if threads is not None:
        file, example = _onnx_file(folder, "fast"), to_device(run.loaders.example, torch.device("cpu"))
        measured = network_ms(file, network, example, threads=threads)
        run.result.with_measured_latency(measured, machine().cpu).save(folder / RESULT)
    return run, network


def _onnx_file(folder: Path, form: str) -> Path:
    return folder / f"{form}.onnx"


def _test_inputs(run: FinishedRun, num_examples: int) -> Any:
    """The inputs of the first examples of the test set."""
    return first_examples((to_device(inputs, torch.device("cpu")) for inputs, _ in run.loaders.test), num_examples)
