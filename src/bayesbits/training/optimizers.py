"""The optimizers of weights, gates and ranges, each with the rate that its schedule has at this part of training."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.training.config import FinetuneConfig, OptimizerConfig, SearchConfig
from bayesbits.training.errors import CheckpointError

LINEAR_FROM = 2 / 3  # the schedule "linear" decays over the last third
STEP_FACTOR = 0.1


def scheduled_rate(config: OptimizerConfig, part: float) -> float:
    """The learning rate after a part of the training, from 0 to 1."""
    if config.schedule == "linear":
        return config.lr * min(1.0, max(0.0, (1 - part) / (1 - LINEAR_FROM)))
    if config.schedule == "steps":
        return config.lr * STEP_FACTOR ** sum(part >= milestone for milestone in config.milestones)
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))
    return config.lr


def make_optimizers(compressor: Compressor, config: SearchConfig | FinetuneConfig) -> "Optimizers":
    """One optimizer for each group of parameters that learns."""
    groups = {group["name"]: group["params"] for group in compressor.parameter_groups()}
    return Optimizers({name: (parameters, getattr(config, name)) for name, parameters in groups.items()})


class Optimizers:
    """One torch optimizer by group name; all of them step together.

    On a GPU the rates lie on the device, where a recorded step reads them: a schedule goes on without recording anew.
    """

    def __init__(self, groups: dict[str, tuple[list[nn.Parameter], OptimizerConfig]]) -> None:
        if not groups:
            raise ValueError("nothing is left to learn: there are no weights, gates or ranges that ask for a gradient")
        self.configs = {name: config for name, (_, config) in groups.items()}
        self.members = {name: _make(parameters, config) for name, (parameters, config) in groups.items()}
        self._rates: dict[str, float] = {}
        self.set_progress(0.0)

    def set_progress(self, part: float) -> None:
        """Set every rate to what its schedule says after a part of the training, from 0 to 1."""
        for name, optimizer in self.members.items():
            rate = scheduled_rate(self.configs[name], part)
            for group in optimizer.param_groups:
                if not isinstance(group["lr"], Tensor):
                    group["lr"] = rate
                elif self._rates.get(name) != rate:
                    group["lr"].fill_(rate)
            self._rates[name] = rate

    def rates(self) -> dict[str, float]:
        """The present rates."""
        return dict(self._rates)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for optimizer in self.members.values():
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update all parameters."""
        for optimizer in self.members.values():
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The state of every optimizer, by group name."""
        return {name: optimizer.state_dict() for name, optimizer in self.members.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; what was recorded of steps has to be recorded anew.

        Options and rates stay as they are here: those of the state may lie on another device, or be for one.
        """
        for name, optimizer in self.members.items():
            own = optimizer.state_dict()["param_groups"]
            sizes = [sum(len(group["params"]) for group in groups) for groups in _groups(state, name, own)]
            if sizes[0] != sizes[1]:
                raise CheckpointError(
                    f"the checkpoint has {sizes[0]} parameters that learn in the group {name!r}, and here there are "
                    f"{sizes[1]}: freeze what was frozen then, or start in another folder"
                )
            optimizer.load_state_dict({"state": state[name]["state"], "param_groups": own})
        self._rates.clear()


def _groups(state: dict[str, Any], name: str, own: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], ...]:
    return state[name]["param_groups"] if name in state else [], own


def _make(parameters: list[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    on_gpu = parameters[0].is_cuda
    rate: Any = torch.tensor(config.lr, device=parameters[0].device) if on_gpu else config.lr
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=rate, momentum=config.momentum, nesterov=config.momentum > 0,
            weight_decay=config.weight_decay, fused=True,
        )  # fmt: skip
    return torch.optim.Adam(parameters, lr=rate, weight_decay=config.weight_decay, fused=True, capturable=on_gpu)
