"""bayesbits learns how many bits every tensor of a network deserves, and which channels it can do without."""

from bayesbits import baselines
from bayesbits.compression.compressor import Compressor, attach
from bayesbits.compression.diagnosis import Diagnosis
from bayesbits.compression.range_estimation import METHODS as CALIBRATION_METHODS
from bayesbits.compression.spec import Rule, Spec
from bayesbits.cost import Cost
from bayesbits.deploy import DeployedNetwork, Verification, VerificationError, deploy, export_onnx, load, save, verify
from bayesbits.graph.trace import trace
from bayesbits.posttraining import PosttrainConfig, posttrain, restore
from bayesbits.records.front import Front
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from bayesbits.training import (
    DeviceLoader,
    FinetuneConfig,
    Interrupted,
    OptimizerConfig,
    SearchConfig,
    TrainingError,
    finetune,
    search,
)

__version__ = "0.1.0"

__all__ = [
    "CALIBRATION_METHODS",
    "Compressor",
    "Cost",
    "DeployedNetwork",
    "DeviceLoader",
    "Diagnosis",
    "FinetuneConfig",
    "Front",
    "IntegerNetwork",
    "Interrupted",
    "OptimizerConfig",
    "Plan",
    "PosttrainConfig",
    "Rule",
    "SearchConfig",
    "Spec",
    "Topology",
    "TrainingError",
    "Verification",
    "VerificationError",
    "attach",
    "baselines",
    "deploy",
    "export_onnx",
    "finetune",
    "load",
    "posttrain",
    "restore",
    "save",
    "search",
    "trace",
    "verify",
]
