"""Runs `bayesbits export`, `verify` and `bench`: from a finished run to files that run in integers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from bayesbits.cli.console import output_console, print_line, print_status
from bayesbits.deploy import DeployedNetwork, VerificationError, deploy, export_onnx, save, verify
from bayesbits.deploy.layer_errors import measure_deployed_errors
from bayesbits.deploy.onnx import openvino_runtime
from bayesbits.deploy.onnx import runtime as onnxruntime_runtime
from bayesbits.deploy.onnx.export import FORMS, export_float_onnx, refusal
from bayesbits.deploy.onnx.latency import Latency, measure_latencies
from bayesbits.deploy.onnx.layer_times import LayerTime, measure_layer_times
from bayesbits.deploy.onnx.measured_network import network_ms
from bayesbits.deploy.onnx.runtime import machine
from bayesbits.recipes.data import first_examples
from bayesbits.recipes.process import is_first_process
from bayesbits.recipes.result import Result
from bayesbits.recipes.run import FinishedRun, restore
from bayesbits.recipes.run_folder import BENCH, LATENCY_TABLE, OPENVINO_VERIFICATION, RESULT, STATISTICS, VERIFICATION
from bayesbits.recipes.statistics import EXAMPLES, write_statistics
from bayesbits.records.bench import Bench, FileTime, KernelTime
from bayesbits.records.latency_table import LatencyTable
from bayesbits.records.tensor_statistics import TensorStatistics
from bayesbits.utils.batches import to_device
from bayesbits.utils.optional_packages import has_extras, require_extras

DEPLOYED, FLOAT = "deployed", "float.onnx"


RUNTIME_FORMS = {"onnxruntime": ("fast", "compact"), "openvino": ("qdq",)}
"""The forms of ONNX files that each runtime is meant to run."""
FINDINGS = {"onnxruntime": VERIFICATION, "openvino": OPENVINO_VERIFICATION}
"""The file of a run with what was verified in each runtime."""


def run_export(folder: Path) -> None:
    """Write the integer network and an ONNX file of every form, and show the network."""
    run, network = _write(folder, FORMS)
    measure_errors(run, network, folder)
    print_line(str(network))


def run_verify(folder: Path, num_examples: int, runtime: str = "onnxruntime") -> None:
    """Compare the ONNX files of a runtime with the trained network, and write the findings."""
    if runtime not in RUNTIME_FORMS:
        raise ValueError(f"--runtime is {runtime!r}; it is one of {', '.join(RUNTIME_FORMS)}")
    require_extras("bayesbits verify", "onnx", *(("openvino",) if runtime == "openvino" else ()))
    findings = folder / FINDINGS[runtime]
    findings.unlink(missing_ok=True)  # old findings must not remain if this verification breaks off
    run, network = _write(folder, RUNTIME_FORMS[runtime])
    measure_errors(run, network, folder)
    batch = _test_inputs(run, num_examples)
    for form in RUNTIME_FORMS[runtime]:
        try:
            found = verify(run.compressor, network, _onnx_file(folder, form), batch, runtime)
        except VerificationError as error:
            if error.found is not None:
                error.found.save(findings)
                error.add_note(f"{_onnx_file(folder, form)} is not proven equal; the findings are in {findings}")
            raise
        print_line(f"{form}\n{found}\n")
    found.save(findings)


def run_bench(folder: Path, rounds: int) -> None:
    """Show time and size of the float network and of the ONNX files, and keep them in the folder."""
    installed = has_extras("openvino")
    run, network = _write(folder, FORMS if installed else RUNTIME_FORMS["onnxruntime"])
    missing = None if installed else 'it is not installed: pip install "bayesbits[openvino]"'
    reason = missing or refusal(network.integer, "qdq")
    with_openvino = reason is None
    example = to_device(run.loaders.example, torch.device("cpu"))
    files = {"float": folder / FLOAT} | {form: _onnx_file(folder, form) for form in RUNTIME_FORMS["onnxruntime"]}
    portable = {"openvino float": folder / FLOAT, "openvino qdq": _onnx_file(folder, "qdq")} if with_openvino else {}
    relative_bops, topology = run.compressor.cost(run.plan).relative_bops, run.compressor.topology
    export_float_onnx(run.compressor.detach().cpu(), example, files["float"])
    latencies = measure_latencies(files | portable, network, example, rounds=rounds, openvino=tuple(portable))
    _print_latencies(latencies, relative_bops)
    layers = measure_layer_times(files["float"], files["fast"], network, topology, example, rounds=rounds)
    _print_slower_layers(layers)
    found, runtimes = machine(), [machine().runtime]
    if with_openvino:
        runtimes.append(openvino_runtime.machine().runtime)
        _print_integer_layers(files["fast"], portable["openvino qdq"], network)
    else:
        print_status(f"OpenVINO was not timed: {reason}")
    Bench(
        cpu=found.cpu,
        runtime=", ".join(runtimes),
        rounds=rounds,
        files=tuple(FileTime(one.name, one.threads, one.batch, one.seconds, one.bytes) for one in latencies),
        layers=tuple(KernelTime(one.layer, one.kernel, one.seconds, one.float_seconds) for one in layers),
    ).save(folder / BENCH)
    print_status(f"wrote {folder / BENCH}, which the report shows")


def _print_latencies(latencies: Sequence[Latency], relative_bops: float) -> None:
    """A row for every file, number of threads and batch size, each compared with float in onnxruntime."""
    float_seconds = {(one.threads, one.batch): one.seconds for one in latencies if one.name == "float"}
    table = Table("file", "threads", "batch", "ms", "times float", "MB", "% of BOPs")
    for one in latencies:
        bops = 100.0 if one.name.endswith("float") else relative_bops
        speed = float_seconds[one.threads, one.batch] / one.seconds
        numbers = (f"{one.seconds * 1e3:.2f}", f"{speed:.2f}", f"{one.bytes / 1e6:.2f}", f"{bops:.3g}")
        table.add_row(one.name, str(one.threads or "all"), str(one.batch), *numbers)
    output_console().print(table)


def _print_integer_layers(fast: Path, qdq: Path, network: DeployedNetwork) -> None:
    """How many layers each runtime computes in integers, and which OpenVINO does not."""
    import onnx

    for module, file in ((onnxruntime_runtime, fast), (openvino_runtime, qdq)):
        found = module.kernels(onnx.load(str(file)), network.integer)
        print_line(f"{module.NAME}: {sum(one.integer for one in found)} of {len(found)} layers in integers")
        for one in found:
            if not one.integer:
                print_line(f"  {one.layer}: {one.operation}, {one.reason}")


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
    _write(folder, RUNTIME_FORMS["onnxruntime"])
    return Result.load(folder / RESULT)


def _write(folder: Path, forms: Sequence[str]) -> tuple[FinishedRun, DeployedNetwork]:
    """Deploy the network of a run, and write it and ONNX files of these forms into the folder.

    A form that the network cannot be written in is left out, with a line that says why; a ValueError where all are.
    """
    require_extras("writing ONNX files", "onnx")
    run = restore(folder, "cpu")
    network = deploy(run.compressor)
    for line in network.shapes():
        print_status(line)
    save(network, folder / DEPLOYED)
    refused = {form: reason for form in forms if (reason := refusal(network.integer, form)) is not None}
    for form, reason in refused.items():
        _onnx_file(folder, form).unlink(missing_ok=True)  # that of an earlier network
        if len(refused) == len(forms):
            raise ValueError(reason)
        print_status(f"{_onnx_file(folder, form)} was not written: {reason}")
    forms = [form for form in forms if form not in refused]
    for form in forms:
        export_onnx(network, run.loaders.example, _onnx_file(folder, form), form)
        print_status(f"wrote {_onnx_file(folder, form)}")
    threads = run.result.latency_threads
    if threads is not None and "fast" in forms:
        file, example = _onnx_file(folder, "fast"), to_device(run.loaders.example, torch.device("cpu"))
        measured = network_ms(file, network, example, threads=threads)
        table = folder / LATENCY_TABLE
        table_cpu = LatencyTable.load(table).cpu if table.exists() else None
        run.result.with_measured_latency(measured, machine().cpu, table_cpu).save(folder / RESULT)
    return run, network


def measure_errors(run: FinishedRun, network: DeployedNetwork, folder: Path) -> None:
    """Add the errors of the deployed network to the statistics of the run, which the report shows.

    Nothing depends on them: where measuring fails, the reason is shown.
    """
    path = folder / STATISTICS
    try:
        if not path.is_file():
            write_statistics(run.compressor, run.loaders, folder, print_status)
        layers, output = measure_deployed_errors(run.compressor, network, _test_inputs(run, EXAMPLES))
        replace(TensorStatistics.load(path), deployed=layers, deployed_output=output).save(path)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        print_status(
            f"the errors of the deployed layers could not be measured ({reason}); the report goes without them"
        )


def _onnx_file(folder: Path, form: str) -> Path:
    return folder / f"{form}.onnx"


def _test_inputs(run: FinishedRun, num_examples: int) -> Any:
    """The inputs of the first examples of the test set."""
    return first_examples((to_device(inputs, torch.device("cpu")) for inputs, _ in run.loaders.test), num_examples)
