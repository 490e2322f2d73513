"""From a compressor to a network that is smaller, computes with integers, and can be stored, exported and verified.

    pipeline.py        `deploy`: the passes in their order
    decision.py        what the passes read: bits, codes, grids, removed channels
    layer_weights.py   the final weights; `remove_weight_channels` removes channels from them
    rewrite/           the passes; `remove_channels.py` removes channels from the graph
    network.py         `DeployedNetwork`, which runs the result in torch by the modules of modules/
    storage.py         `save` and `load`, with graph_json.py and packing.py
    onnx/              `export_onnx`, `measure`, onnxruntime and OpenVINO
    verification/      `verify`

All code that runs after the passes reads the `IntegerNetwork` (records/integer_network.py) and the graph of torch's
operations. To add a runtime that reads ONNX files of the form "qdq", add a file like onnx/openvino_runtime.py and name
it in `RUNTIMES` (verification/verify.py): verification/compare_portable.py compares it. For another format write the
file from these two in a folder beside onnx/, as onnx/export.py does, and compare it as verification/compare_runtime.py
and compare_onnx_constants.py do. Name the runtime in `BACKENDS` (compression/spec.py; "tensorrt" is there alone, as it
does not run here), utils/optional_packages.py and the extras of pyproject.toml. The commands `verify` and `bench` have
their runtimes in cli/deploy.py and cli/commands/deployment.py, with the files that they write in recipes/run_folder.py
and the times in records/bench.py and onnx/latency.py. If the runtime computes other layers in integers than onnxruntime
does, or emits other codes, change rewrite/choose_arithmetic.py, rewrite/fuse_quantizers.py and the arithmetic in
modules/.
"""

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.export import export_onnx
from bayesbits.deploy.onnx.measure import measure
from bayesbits.deploy.pipeline import deploy
from bayesbits.deploy.storage import load, save
from bayesbits.deploy.verification.result import Verification, VerificationError
from bayesbits.deploy.verification.verify import verify

__all__ = [
    "DeployedNetwork",
    "Verification",
    "VerificationError",
    "deploy",
    "export_onnx",
    "load",
    "measure",
    "save",
    "verify",
]
