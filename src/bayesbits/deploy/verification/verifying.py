"""`verify`: the same inputs through the simulation, the deployed network and onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesbits.compression.compressor import Compressor, check_compressor
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.packages import require
from bayesbits.deploy.verification.copies import fixed_copy
from bayesbits.deploy.verification.deployed import run_deployed
from bayesbits.deploy.verification.derived import derive_grids, derive_layers
from bayesbits.deploy.verification.inputs import Inputs
from bayesbits.deploy.verification.record import Constant, Kernel, Machine, Simulated, Verification, VerificationError
from bayesbits.deploy.verification.recorded import check_record
from bayesbits.deploy.verification.simulated import SimulationProof
from bayesbits.deploy.verification.trained import check_trained

if TYPE_CHECKING:
    from bayesbits.deploy.verification.comparing import Comparison


def verify(compressor: Compressor, small: DeployedNetwork, path: str | Path, inputs: Any) -> Verification:
    """Prove that simulation, deployed network and ONNX file agree on these inputs; raises where they do not.

    Steps, bounds, zero points, codes of weights and biases are derived once more from the plan and the trained weights,
    and those of the deployed network and of the file are equal. Every layer by itself, with equal inputs: the
    simulation, fed the deployed network's codes, has the same codes at every quantizer (layers' inputs and operands of
    additions) but beside a tie of the exact value, which is counted; onnxruntime with default options, fed the deployed
    network's values, has equal values where there are only integers and element-wise arithmetic, and elsewhere numbers
    as far apart as float arithmetic explains. All outputs are compared. End to end, differences are counted, and where
    everything in front is exact, the file's are none.

    `inputs` are as for `attach`, with as many examples as are to be compared. A VerificationError names the first place
    that differs, and carries what was `found` until then.
    """
    require("verify")
    check_compressor(compressor, "verify")
    if not isinstance(small, DeployedNetwork):
        raise TypeError(
            f"verify takes the network that deploy returned, and this is a {type(small).__name__}: pass "
            "bayesbits.deploy(compressor)"
        )
    from bayesbits.deploy.verification.comparing import Comparison
    from bayesbits.deploy.verification.constants import check_constants
    from bayesbits.deploy.verification.runtime import kernels, machine, optimized_graph

    examples = Inputs(inputs, small)
    model = _read(path)
    found = _Findings(machine())
    try:
        plan = compressor.plan()
        fixed = fixed_copy(compressor, plan)
        grids = derive_grids(fixed, plan)
        layers = derive_layers(fixed, plan, grids)
        check_trained(fixed, layers)
        found.derived = check_record(small, fixed, plan, layers, grids)
        found.stored = check_constants(model, small.integer)
        simulation = found.simulation = SimulationProof(compressor, small, plan, layers, grids)
        comparison = found.comparison = Comparison(small, model)
        for batch in examples.batches():
            bound = small.bind(batch.args, batch.kwargs)
            values, outputs = run_deployed(small, bound, simulation.nodes | comparison.nodes)
            comparison.run(bound, batch.count, values, outputs)
            simulation.run(batch, values, outputs)
        simulation.run_forward(examples.few())
        simulation.run_ends(examples.few())
        found.kernels = kernels(optimized_graph(model), small.integer)
    except VerificationError as error:
        error.found = found.record(str(error))
        raise
    return found.record(None)


def _read(path: str | Path) -> Any:
    import onnx

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}: bayesbits.export_onnx writes it")
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf's own, of no common kind
        raise ValueError(f"{path} cannot be read as an ONNX file: {error}") from error
    if not model.HasField("graph"):
        raise ValueError(f"{path} cannot be read as an ONNX file: there is no graph in it")
    return model


@dataclass
class _Findings:
    """What is known so far."""

    machine: Machine
    derived: Constant = field(default_factory=Constant)
    stored: Constant = field(default_factory=Constant)
    simulation: SimulationProof | None = None
    comparison: Comparison | None = None
    kernels: tuple[Kernel, ...] = ()

    def record(self, failure: str | None) -> Verification:
        return Verification(
            machine=self.machine,
            derived=self.derived,
            stored=self.stored,
            simulated=Simulated() if self.simulation is None else self.simulation.found(),
            places=() if self.comparison is None else self.comparison.places,
            kernels=self.kernels,
            failure=failure,
        )
