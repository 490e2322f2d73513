"""From a compressor to a network that is really smaller, computes with integers, and can be stored."""

from bayesbits.deploy.deploying import deploy
from bayesbits.deploy.files import load, save
from bayesbits.deploy.network import DeployedNetwork

__all__ = ["DeployedNetwork", "deploy", "load", "save"]
