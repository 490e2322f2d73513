"""bayesbits learns how many bits every tensor of a network deserves, and which channels it can do without.

Importing the package imports nothing else, not even torch, so that the command line shows its help at once: each
public name is imported when it is first used. Type checkers read the imports under `TYPE_CHECKING`; a test holds them
equal to `_SOURCES`.
"""

import sys
from typing import TYPE_CHECKING

from bayesbits.utils.lazy_package import LazyPackage

if TYPE_CHECKING:
    from bayesbits import baselines, functional
    from bayesbits.compression.attach import attach
    from bayesbits.compression.budget import Budget
    from bayesbits.compression.compressor import Compressor
    from bayesbits.compression.diagnosis import Diagnosis
    from bayesbits.compression.range_estimation import METHODS as CALIBRATION_METHODS
    from bayesbits.compression.smallest_plan import BudgetError
    from bayesbits.compression.spec import Rule, Spec
    from bayesbits.cost import Cost
    from bayesbits.deploy import (
        DeployedNetwork,
        Verification,
        VerificationError,
        deploy,
        export_onnx,
        load,
        measure,
        save,
        verify,
    )
    from bayesbits.graph.trace import trace
    from bayesbits.posttraining import PosttrainConfig, posttrain, restore
    from bayesbits.records.front import Front
    from bayesbits.records.integer_network import IntegerNetwork
    from bayesbits.records.latency_table import LatencyTable
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
    "Budget",
    "BudgetError",
    "Compressor",
    "Cost",
    "DeployedNetwork",
    "DeviceLoader",
    "Diagnosis",
    "FinetuneConfig",
    "Front",
    "IntegerNetwork",
    "Interrupted",
    "LatencyTable",
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
    "functional",
    "load",
    "measure",
    "posttrain",
    "restore",
    "save",
    "search",
    "trace",
    "verify",
]

# Where each public name comes from, as "module:attribute"; a name without an attribute is that module.
_SOURCES = {
    "Budget": "bayesbits.compression.budget:Budget",
    "BudgetError": "bayesbits.compression.smallest_plan:BudgetError",
    "CALIBRATION_METHODS": "bayesbits.compression.range_estimation:METHODS",
    "Compressor": "bayesbits.compression.compressor:Compressor",
    "Cost": "bayesbits.cost:Cost",
    "DeployedNetwork": "bayesbits.deploy:DeployedNetwork",
    "DeviceLoader": "bayesbits.training:DeviceLoader",
    "Diagnosis": "bayesbits.compression.diagnosis:Diagnosis",
    "FinetuneConfig": "bayesbits.training:FinetuneConfig",
    "Front": "bayesbits.records.front:Front",
    "IntegerNetwork": "bayesbits.records.integer_network:IntegerNetwork",
    "Interrupted": "bayesbits.training:Interrupted",
    "LatencyTable": "bayesbits.records.latency_table:LatencyTable",
    "OptimizerConfig": "bayesbits.training:OptimizerConfig",
    "Plan": "bayesbits.records.plan:Plan",
    "PosttrainConfig": "bayesbits.posttraining:PosttrainConfig",
    "Rule": "bayesbits.compression.spec:Rule",
    "SearchConfig": "bayesbits.training:SearchConfig",
    "Spec": "bayesbits.compression.spec:Spec",
    "Topology": "bayesbits.records.topology:Topology",
    "TrainingError": "bayesbits.training:TrainingError",
    "Verification": "bayesbits.deploy:Verification",
    "VerificationError": "bayesbits.deploy:VerificationError",
    "attach": "bayesbits.compression.attach:attach",
    "baselines": "bayesbits.baselines",
    "deploy": "bayesbits.deploy:deploy",
    "export_onnx": "bayesbits.deploy:export_onnx",
    "finetune": "bayesbits.training:finetune",
    "functional": "bayesbits.functional",
    "load": "bayesbits.deploy:load",
    "measure": "bayesbits.deploy:measure",
    "posttrain": "bayesbits.posttraining:posttrain",
    "restore": "bayesbits.posttraining:restore",
    "save": "bayesbits.deploy:save",
    "search": "bayesbits.training:search",
    "trace": "bayesbits.graph.trace:trace",
    "verify": "bayesbits.deploy:verify",
}

sys.modules[__name__].__class__ = LazyPackage
