"""The optimizers of weights, gates and ranges, and their learning rate schedules."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.training.config import (
    FinetuneConfig,
    OptimizerConfig,
    SearchConfig,
    gate_optimizer,
    range_optimizer,
)
from bayesbits.training.distributed import full_optimizer_state, shard_optimizer_state
from bayesbits.training.errors import CheckpointError

LINEAR_FROM = 2 / 3  # the schedule "linear" decays over the last third
STEP_FACTOR = 0.1


def scheduled_lr(config: OptimizerConfig, part: float) -> float:
    """The learning rate after a part of the training, from 0 to 1."""
    if config.schedule == "linear":
        return config.lr * min(1.0, max(0.0, (1 - part) / (1 - LINEAR_FROM)))
    if config.schedule == "steps":
        return config.lr * STEP_FACTOR ** sum(part >= milestone for milestone in config.milestones)
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))
    return config.lr


def make_optimizers(
    compressor: Compressor, config: SearchConfig | FinetuneConfig, steps: int = sys.maxsize
) -> "Optimizers":
    """One optimizer for each group of parameters that learns; `steps` is the number of steps of the whole phase."""
    groups = {group["name"]: group["params"] for group in compressor.parameter_groups()}
    wanted = compressor.attachment.method.ranges
    configs = {"weights": config.weights, "ranges": _range_optimizer(config, steps, wanted)}
    if isinstance(config, SearchConfig):
        configs["gates"] = gate_optimizer(config, steps)
    return Optimizers({name: (parameters, configs[name]) for name, parameters in groups.items()})


def _range_optimizer(config: SearchConfig | FinetuneConfig, steps: int, wanted: Mapping[str, Any]) -> OptimizerConfig:
    """How ranges learn: as the configuration says, or, where that is the default, as the method wants it."""
    default = type(config)().ranges
    if not wanted or config.ranges != default:
        return range_optimizer(config, steps)
    default = OptimizerConfig() if default is None else default
    lr = wanted.get("lr", OptimizerConfig().lr) * default.lr / OptimizerConfig().lr  # fine-tuning has a smaller one
    return replace(default, **{**wanted, "lr": lr})


class Optimizers:
    """One torch optimizer by group name; all of them step together.

    On a GPU the learning rates are tensors on the device, where a recorded CUDA graph reads them: a schedule changes
    them without recording again.
    """

    def __init__(self, groups: dict[str, tuple[list[nn.Parameter], OptimizerConfig]]) -> None:
        if not groups:
            raise ValueError("nothing is left to learn: no weight, gate or range requires a gradient")
        self.configs = {name: config for name, (_, config) in groups.items()}
        self.members = {name: _make(parameters, config) for name, (parameters, config) in groups.items()}
        self._lrs: dict[str, float] = {}
        self._stopped: set[str] = set()
        self.set_progress(0.0)

    def set_progress(self, part: float) -> None:
        """Set every learning rate to its schedule's value after a part of the training, from 0 to 1."""
        for name, optimizer in self.members.items():
            lr = 0.0 if name in self._stopped else scheduled_lr(self.configs[name], part)
            for group in optimizer.param_groups:
                if not isinstance(group["lr"], Tensor):
                    group["lr"] = lr
                elif self._lrs.get(name) != lr:
                    group["lr"].fill_(lr)
            self._lrs[name] = lr

    def stop(self, name: str, stopped: bool) -> None:
        """Hold the parameters of a group where they are from the next `set_progress` on."""
        self._stopped = self._stopped | {name} if stopped else self._stopped - {name}

    def lrs(self) -> dict[str, float]:
        """The current learning rates, by group name."""
        return dict(self._lrs)

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for optimizer in self.members.values():
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update all parameters."""
        for optimizer in self.members.values():
            optimizer.step()

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """The state of every optimizer, by group name; of a sharded network the full one, in every process."""
        return {name: full_optimizer_state(model, optimizer) for name, optimizer in self.members.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned; a recorded CUDA graph has to be recorded again.

        Options and learning rates stay as they are here: those of the state may lie on another device.
        """
        for name, optimizer in self.members.items():
            own = optimizer.state_dict()["param_groups"]
            sizes = [sum(len(group["params"]) for group in groups) for groups in _groups(state, name, own)]
            if sizes[0] != sizes[1]:
                raise CheckpointError(
                    f"the checkpoint has {sizes[0]} parameters that learn in the group {name!r}, and here there are "
                    f"{sizes[1]}: freeze the same parameters as before, or start in another folder"
                )
            sharded = shard_optimizer_state(optimizer, state[name]["state"])
            optimizer.load_state_dict({"state": sharded, "param_groups": own})
        self._lrs.clear()


def _groups(state: dict[str, Any], name: str, own: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], ...]:
    return state[name]["param_groups"] if name in state else [], own


def _make(parameters: list[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    on_gpu = parameters[0].is_cuda
    lr: Any = torch.tensor(config.lr, device=parameters[0].device) if on_gpu else config.lr
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=lr, momentum=config.momentum, nesterov=config.momentum > 0,
            weight_decay=config.weight_decay, fused=True,
        )  # fmt: skip
    return torch.optim.Adam(parameters, lr=lr, weight_decay=config.weight_decay, fused=True, capturable=on_gpu)
