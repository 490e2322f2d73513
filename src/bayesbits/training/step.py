"""One step of training: forward, loss, penalty, backward, update; eager, compiled, or recorded as a CUDA graph.

Compiling and recording are attempts: where one fails, the log says so once and training goes on without it. A recorded
step is for batches of one shape; batches of another (the last of an epoch) run unrecorded and uncompiled.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bayesbits.compressor import Compressor
from bayesbits.recorder import WARM_UP, Recorder, first_line
from bayesbits.training.config import FinetuneConfig, SearchConfig
from bayesbits.training.optimizers import Optimizers

_log = logging.getLogger("bayesbits")

LossFunction = Callable[[Any, Any], Tensor]

# Gates and ranges are many small tensors: whatever can run beside each other shall be one kernel.
_GPU_OPTIONS: dict[str, Any] = {"combo_kernels": True, "max_pointwise_cat_inputs": 64}


def call(network: nn.Module, inputs: Any) -> Any:
    """The network's output for a batch's inputs: a tensor, a tuple of positional or a dict of keyword inputs."""
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple | list) else network(inputs)


def distillation_loss(output: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """T^2 KL between the softened outputs of teacher and student, the mean over the examples."""
    student, teacher = (F.log_softmax(logits.float() / temperature, dim=-1) for logits in (output, wanted))
    examples = student.numel() // student.shape[-1]
    return temperature**2 * F.kl_div(student, teacher, reduction="sum", log_target=True) / examples


class TrainingStep:
    """Call it with a batch: it updates the parameters and returns loss, task loss and penalty, on the device."""

    def __init__(
        self,
        network: nn.Module,
        compressor: Compressor,
        loss_fn: LossFunction,
        optimizers: Optimizers,
        config: SearchConfig | FinetuneConfig,
        *,
        mu: float,
        teacher: nn.Module | None = None,
    ) -> None:
        """`network` is the compressor's model, or what wraps it for parallel training."""
        self.network, self.compressor, self.loss_fn, self.optimizers = network, compressor, loss_fn, optimizers
        self.config, self.mu, self.teacher = config, mu, teacher
        self.device = next(compressor.model.parameters()).device
        self.may_compile = config.compile
        records = config.cuda_graph and self.device.type == "cuda" and network is compressor.model
        self._recorder = Recorder(self.device) if records else None
        if config.channels_last:
            compressor.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.reset()

    def reset(self) -> None:
        """Forget what was compiled or recorded: modes have changed, a state was loaded, or it was the last step."""
        self._forget()
        self._previous_shapes: Any = None

    def _forget(self) -> None:
        self._compiled: Callable[..., Tensor] | None = None
        self._shapes: Any = None
        self._calls = 0
        if self._recorder is not None:
            self._recorder.forget()

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        batch = tree_map(self._place, (inputs, targets))
        shapes = tree_map(lambda leaf: (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf, batch)
        again, self._previous_shapes = shapes == self._previous_shapes, shapes
        odd_start = shapes != self._shapes and again and self._calls <= WARM_UP  # the first batch was the odd one
        if self._shapes is None or odd_start:
            self._forget()
            self._shapes = shapes
        if shapes != self._shapes:
            return self._recorder.launch(self._update, *batch) if self._recorder else self._update(*batch)
        self._calls += 1
        values: Tensor = (
            self._recorder.run(self._compiled_update, *batch) if self._recorder else self._compiled_update(*batch)
        )
        return values

    def _place(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.to(self.device, non_blocking=True)
        if self.config.channels_last and leaf.dim() == 4:
            leaf = leaf.contiguous(memory_format=torch.channels_last)
        return leaf

    def _update(self, inputs: Any, targets: Any) -> Tensor:
        values = self._differentiate(self._losses, inputs, targets)
        self.optimizers.step()
        return values

    def _compiled_update(self, inputs: Any, targets: Any) -> Tensor:
        values = self._differentiate_compiled(inputs, targets)
        self.optimizers.step()
        return values

    def _losses(self, inputs: Any, targets: Any) -> Tensor:
        """Loss, task loss and penalty as one vector; the first is what is minimised."""
        low = torch.autocast(self.device.type, torch.bfloat16) if self.config.precision == "bfloat16" else nullcontext()
        with low:
            output = call(self.network, inputs)
            task = self.loss_fn(output, targets)
        loss = task = task.float()
        if self.teacher is not None and self.config.distillation > 0:
            with torch.no_grad(), low:
                wanted = call(self.teacher, inputs)
            part = self.config.distillation
            loss = (1 - part) * task + part * distillation_loss(output, wanted, self.config.temperature)
        penalty = self.compressor.penalty() if self.mu > 0 else torch.zeros_like(loss)
        return torch.stack([loss + self.mu * penalty, task, penalty.to(loss.dtype)])

    def _differentiate(self, losses: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> Tensor:
        """Loss, task loss and penalty; every parameter has its gradient."""
        self.optimizers.zero_grad()
        values = losses(inputs, targets)
        values[0].backward()  # type: ignore[no-untyped-call]
        return values.detach()

    def _differentiate_compiled(self, inputs: Any, targets: Any) -> Tensor:
        if not self.may_compile:
            return self._differentiate(self._losses, inputs, targets)
        if self._compiled is not None:
            return self._differentiate(self._compiled, inputs, targets)
        options = _GPU_OPTIONS if self.device.type == "cuda" else None
        compiled = torch.compile(self._losses, dynamic=False, options=options)
        before = [(buffer, buffer.clone()) for buffer in self.compressor.model.buffers()]
        try:
            values = self._differentiate(compiled, inputs, targets)
        except Exception as error:  # whatever a compiler meets in a user's network
            reason = first_line(error)
        else:
            self._compiled = compiled
            return values
        for buffer, value in before:  # statistics and noise: the forward pass may have been through
            buffer.copy_(value)
        try:
            values = self._differentiate(self._losses, inputs, targets)
        except Exception as error:  # what is wrong with the network itself
            error.add_note(f"Before this the compiled network had failed: {reason}")
            raise
        self.may_compile = False
        _log.warning("the network cannot be compiled and trains uncompiled: %s", reason)
        return values
