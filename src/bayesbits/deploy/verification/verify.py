"""`verify`: proves that trained simulation, deployed network and ONNX file compute the same.

`verify` below is the whole proof, step by step; the steps are in the files `compare_*.py`, named by what they compare.
A file of the form "qdq" is compared in steps, as the arithmetic of the runtime that reads it is its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesbits.compression.compressor import Compressor, check_compressor
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx import openvino_runtime
from bayesbits.deploy.onnx import runtime as onnxruntime_runtime
from bayesbits.deploy.onnx.runtime import Kernel, Machine
from bayesbits.deploy.verification.compare_constants import check_deployed_constants, check_simulated_constants
from bayesbits.deploy.verification.compare_simulation import SimulationComparison
from bayesbits.deploy.verification.compare_tables import check_deployed_tables, check_simulated_tables, derive_tables
from bayesbits.deploy.verification.deployed_program import run_deployed
from bayesbits.deploy.verification.derived_constants import derive_grids, derive_layers
from bayesbits.deploy.verification.inputs import Inputs
from bayesbits.deploy.verification.result import ConstantCounts, SimulationCounts, Verification, VerificationError
from bayesbits.deploy.verification.simulation import fixed_copy
from bayesbits.utils.optional_packages import require_extras
from bayesbits.utils.progress import progress_bar

if TYPE_CHECKING:
    from onnx import ModelProto

    from bayesbits.deploy.verification.compare_portable import PortableComparison
    from bayesbits.deploy.verification.compare_runtime import RuntimeComparison

RUNTIMES = {"onnxruntime": onnxruntime_runtime, "openvino": openvino_runtime}


def verify(
    compressor: Compressor, small: DeployedNetwork, path: str | Path, inputs: Any, runtime: str = "onnxruntime"
) -> Verification:
    """Prove that simulation, deployed network and ONNX file agree on these inputs; raise where they do not.

    Constants (steps, bounds, zero points, codes of weights and biases) are derived a second time from the plan and the
    trained weights; those of the deployed network and of the file have to be equal. Then every layer is compared on
    equal inputs: the simulation, fed the deployed network's codes, has to compute the same codes except next to a
    rounding tie of the exact value, which is counted; onnxruntime with default options, fed the deployed network's
    values, has to compute equal integers, and after float operations numbers as close as rounding explains. End to end,
    differences are counted; the file may have none where every tensor is exact.

    A file of the form ``"qdq"`` is judged otherwise, as a runtime rounds in its own way there: fed the deployed
    network's values, no layer may be more than one step of its grid away. End to end, differences are counted, and an
    output that is off by more than 64 steps in the mean is an error, in batches of 1 and 4 as well. A tensor without a
    grid has steps of the 255th part of its largest value.

    Args:
        compressor: The handle that :func:`bayesbits.attach` returned.
        small: The network that :func:`bayesbits.deploy` made of it.
        path: The file that :func:`bayesbits.export_onnx` wrote.
        inputs: Inputs as for :func:`bayesbits.attach`, with as many examples as are to be compared.
        runtime: The runtime that runs the file: ``"onnxruntime"``, or ``"openvino"`` for a file of the form ``"qdq"``.

    Returns:
        The :class:`bayesbits.Verification`: all counts and errors.

    Raises:
        VerificationError: If they disagree. The message names the first tensor that differs; the attribute ``found``
            holds the results so far.
        ImportError: If a package of the extra ``onnx`` is missing, or of the extra ``openvino`` for that runtime.
        TypeError: If ``compressor`` or ``small`` is of another class.
        ValueError: If the inputs are empty, not finite or misshapen, the file is no ONNX file or one of a form that the
            runtime does not read, or there is no such runtime.
        FileNotFoundError: If there is no such file.

    Example::

        >>> import tempfile
        >>> import torch
        >>> import bayesbits as bb
        >>> inputs = torch.linspace(-1, 1, 8).reshape(2, 4)
        >>> compressor = bb.attach(torch.nn.Linear(4, 2).eval(), inputs)
        >>> compressor.calibrate([inputs])
        >>> compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
        >>> small = bb.deploy(compressor)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bb.export_onnx(small, inputs, f"{folder}/small.onnx")
        ...     found = bb.verify(compressor, small, f"{folder}/small.onnx", inputs)
        >>> print(found.derived)
        8 weights, 2 biases and 1 grid, all equal
        >>> found.failure is None
        True
    """
    _check_arguments(compressor, small, runtime)
    # Imported here because they import onnx, which is optional.
    from bayesbits.deploy.onnx.tensor_names import read_form
    from bayesbits.deploy.verification.compare_onnx_constants import check_onnx_constants
    from bayesbits.deploy.verification.compare_qdq_constants import check_qdq_constants

    examples = Inputs(inputs, small)
    model = _read_onnx(path)
    portable = read_form(model) == "qdq"
    if runtime != onnxruntime_runtime.NAME and not portable:
        raise ValueError(
            f'{path} is written for {onnxruntime_runtime.NAME}: for {runtime} write one by export_onnx(..., form="qdq")'
        )
    found = _Findings(RUNTIMES[runtime].machine())
    try:
        # Derive every constant a second time from plan and trained weights.
        plan = compressor.plan()
        fixed = fixed_copy(compressor, plan)
        grids = derive_grids(fixed, plan)
        constants = derive_layers(fixed, plan, grids)
        tables = derive_tables(fixed, plan)

        # Compare the constants of simulation, deployed network and file.
        check_simulated_constants(fixed, constants)
        check_simulated_tables(fixed, tables)
        counts = check_deployed_constants(small, fixed, plan, constants, grids)
        found.derived = replace(counts, weights=counts.weights + check_deployed_tables(small, tables))
        found.stored = (check_qdq_constants if portable else check_onnx_constants)(model, small.integer)

        # Run all three on the inputs, and compare them tensor by tensor and end to end.
        simulation = found.simulation = SimulationComparison(fixed, small, constants, grids, tables)
        running = found.runtime = _compare_runtime(small, model, runtime, portable)
        with progress_bar("verifying", examples.calls) as advance:
            for batch in examples.batches():
                bound = small.bind(batch.args, batch.kwargs)
                values, outputs = run_deployed(small, bound, simulation.nodes | running.nodes)
                running.compare(bound, batch.count, values, outputs)
                simulation.compare(batch, values, outputs)
                advance()

        # Compare what these inputs need not show: names and containers, the lowest and highest codes, the kernels.
        simulation.compare_signature(examples.smallest_batch())
        simulation.compare_code_bounds(examples.smallest_batch())
        found.kernels = RUNTIMES[runtime].kernels(model, small.integer)
    except VerificationError as error:
        error.found = found.result(str(error))
        raise
    return found.result(None)


def _compare_runtime(
    small: DeployedNetwork, model: ModelProto, runtime: str, portable: bool
) -> RuntimeComparison | PortableComparison:
    from bayesbits.deploy.verification.compare_portable import PortableComparison
    from bayesbits.deploy.verification.compare_runtime import RuntimeComparison

    if portable:
        return PortableComparison(small, model, runtime, RUNTIMES[runtime].Session)
    return RuntimeComparison(small, model)


def _check_arguments(compressor: Compressor, small: DeployedNetwork, runtime: str) -> None:
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime is {runtime!r}; it is one of {', '.join(RUNTIMES)}")
    require_extras("verify", "onnx")
    if runtime == openvino_runtime.NAME:
        require_extras('verify with runtime="openvino"', "openvino")
    check_compressor(compressor, "verify")
    if not isinstance(small, DeployedNetwork):
        raise TypeError(
            f"verify takes the network that deploy returned, and this is a {type(small).__name__}: pass "
            "bayesbits.deploy(compressor)"
        )


def _read_onnx(path: str | Path) -> ModelProto:
    import onnx

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}: bayesbits.export_onnx writes it")
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf raises classes of its own
        raise ValueError(f"{path} cannot be read as an ONNX file: {error}") from error
    if not model.HasField("graph"):
        raise ValueError(f"{path} cannot be read as an ONNX file: there is no graph in it")
    return model


@dataclass
class _Findings:
    """The results so far."""

    machine: Machine
    derived: ConstantCounts = field(default_factory=ConstantCounts)
    stored: ConstantCounts = field(default_factory=ConstantCounts)
    simulation: SimulationComparison | None = None
    runtime: RuntimeComparison | PortableComparison | None = None
    kernels: tuple[Kernel, ...] = ()

    def result(self, failure: str | None) -> Verification:
        return Verification(
            machine=self.machine,
            derived=self.derived,
            stored=self.stored,
            simulated=SimulationCounts() if self.simulation is None else self.simulation.result(),
            runtime_tensors=() if self.runtime is None else self.runtime.result(),
            kernels=self.kernels,
            failure=failure,
        )
