"""From a compressor to a network that is really smaller, computes with integers, and can be stored."""

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.export import export_onnx
from bayesbits.deploy.pipeline import deploy
from bayesbits.deploy.storage import load, save
from bayesbits.deploy.verification.result import Verification, VerificationError
from bayesbits.deploy.verification.verify import verify

__all__ = ["DeployedNetwork", "Verification", "VerificationError", "deploy", "export_onnx", "load", "save", "verify"]
