"""One step of training: forward, loss, penalty, backward, update; eager, compiled, or recorded as a CUDA graph.

Where compiling or recording fails, training continues without it, and `execution` says why. A compiled or recorded step
is for batches of one shape; batches of another shape, such as the last of an epoch, run eagerly.
"""

import logging
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.functional.compiled import with_own_code
from bayesbits.functional.dispatch import watching
from bayesbits.nn import Quantizer
from bayesbits.training.budget_control import BudgetControl
from bayesbits.training.config import FinetuneConfig, SearchConfig
from bayesbits.training.execution import Execution, quantizers_by
from bayesbits.training.optimizers import Optimizers
from bayesbits.utils.batches import call_model
from bayesbits.utils.cuda_graph import WARM_UP, Recorder, first_line
from bayesbits.utils.torch_private import tree_map

_log = logging.getLogger("bayesbits")

LossFunction = Callable[[Any, Any], Tensor]

# Gates and ranges are many small tensors: operations that can run side by side are fused into one kernel.
_GPU_OPTIONS: dict[str, Any] = {"combo_kernels": True, "max_pointwise_cat_inputs": 64}


def distillation_loss(output: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) of the outputs at temperature T, averaged over the examples."""
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
        control: BudgetControl | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        """`network` is the compressor's model, or its wrapper for several processes.

        `mu` is the weight of the penalty; with a budget `control` takes the place of both.
        """
        self.network, self.compressor, self.loss_fn, self.optimizers = network, compressor, loss_fn, optimizers
        self.config, self.mu, self.control, self.teacher = config, mu, control, teacher
        self.device = next(compressor.model.parameters()).device
        self.has_method_loss = compressor.attachment.method.name != "bayesian_bits"
        self.may_compile, self._ran_eagerly = config.compile, False
        self.execution: Execution | None = None
        """How it is executed, once that is known."""
        self._not_compiled = "" if config.compile else "compile is false"
        self._not_recorded = self._no_record()
        self._recorder = None if self._not_recorded else Recorder(self.device)
        if config.channels_last:
            compressor.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.reset()

    def _no_record(self) -> str:
        """Why no step is recorded; empty where one will be."""
        if not self.config.cuda_graph:
            return "cuda_graph is false"
        if self.device.type != "cuda":
            return f"the network is on the {self.device.type}"
        return "" if self.network is self.compressor.model else "the network is wrapped for parallel training"

    def reset(self) -> None:
        """Drop the compiled and the recorded step: modes have changed, a state was loaded, or it was the last step."""
        self._forget()
        self._previous_shapes: Any = None

    def _forget(self) -> None:
        self._compiled: Callable[..., Tensor] | None = None
        self._shapes: Any = None
        self._calls = self._odd = 0
        self._ran: set[str] = set()
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
            self._odd += 1
            return self._recorder.launch(self._update, *batch) if self._recorder else self._update(*batch)
        self._calls += 1
        if self._calls > WARM_UP + 1:
            return self._run(batch)
        with watching() as ran:
            values = self._run(batch)
        self._ran |= set(ran)
        if self._recorder is None or self._recorder.has_recorded or self._recorder.refused:
            self.settle()
        return values

    def _run(self, batch: Any) -> Tensor:
        values: Tensor = (
            self._recorder.run(self._compiled_update, *batch) if self._recorder else self._compiled_update(*batch)
        )
        return values

    def settle(self) -> None:
        """Determine how the steps were executed so far; the engine calls this at the end of an epoch."""
        recorder, count = self._recorder, self._calls + self._odd
        pending = recorder is not None and not recorder.has_recorded and not recorder.refused
        odd = f"{self._odd} of {count} batches have another shape" if self._odd > self._calls else ""
        if count == 0 or (pending and self.execution is not None and not odd):
            return  # nothing has run since a reset, or too little to tell
        not_recorded = self._not_recorded
        if recorder is not None and not recorder.has_recorded:
            not_recorded = recorder.refused or f"it takes more than {WARM_UP} batches of one shape"
        modules = self.compressor.model.modules()
        attached = any(isinstance(module, Quantizer) and module.mode != "off" for module in modules)
        self.execution = Execution(
            quantizers=quantizers_by(self._ran, attached=attached, compiled=self.may_compile and not odd),
            compiled=self.may_compile and not odd,
            not_compiled=self._not_compiled or (odd if self.may_compile else ""),
            recorded=not not_recorded and not odd,
            not_recorded=not_recorded or odd,
        )

    def _place(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.to(self.device, non_blocking=True)
        if self.config.channels_last and leaf.dim() == 4:
            leaf = leaf.contiguous(memory_format=torch.channels_last)
        return leaf

    def _update(self, inputs: Any, targets: Any) -> Tensor:
        return self._finish(self._differentiate(self._losses, inputs, targets))

    def _compiled_update(self, inputs: Any, targets: Any) -> Tensor:
        return self._finish(self._differentiate_compiled(inputs, targets))

    def _finish(self, values: Tensor) -> Tensor:
        """Update the parameters, and the weights of the penalty where there is a budget."""
        self.optimizers.step()
        if self.control is not None:
            self.control.update(values[3:].reshape(2, -1))
        return values[:3]

    def _losses(self, inputs: Any, targets: Any) -> Tensor:
        """Loss, task loss and penalty as one vector, and the costs that `control` measures; the first is minimized."""
        if not torch.compiler.is_compiling():  # never reached in a compiled network
            self._ran_eagerly = True
        low = torch.autocast(self.device.type, torch.bfloat16) if self.config.precision == "bfloat16" else nullcontext()
        with low:
            output = call_model(self.network, inputs)
            task = self.loss_fn(output, targets)
        loss = task = task.float()
        if self.teacher is not None and self.config.distillation > 0:
            with torch.no_grad(), low:
                wanted = call_model(self.teacher, inputs)
            part = self.config.distillation
            loss = (1 - part) * task + part * distillation_loss(output, wanted, self.config.temperature)
        added = self.compressor.attachment.method_loss(loss) if self.has_method_loss else None
        loss = loss if added is None else loss + added.to(loss.dtype)
        if self.control is not None:
            log_costs = self.control.measure()
            penalty = self.control.penalty(log_costs).to(loss.dtype)
            return torch.cat([torch.stack([loss + penalty, task, penalty]), log_costs.flatten().to(loss.dtype)])
        penalty = self.compressor.penalty() if self.mu > 0 else torch.zeros_like(loss)
        return torch.stack([loss + self.mu * penalty, task, penalty.to(loss.dtype)])

    def _differentiate(self, losses: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> Tensor:
        """Loss, task loss and penalty; afterwards every parameter has its gradient."""
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
        # The compiler counts compilations by code object and gives up after a few: every step has its own.
        own = types.MethodType(with_own_code(type(self)._losses), self)
        compiled = torch.compile(own, dynamic=False, options=options)
        self._ran_eagerly = False
        before = [(buffer, buffer.clone()) for buffer in self.compressor.model.buffers()]
        try:
            values = self._differentiate(compiled, inputs, targets)
        except Exception as error:  # a compiler can raise anything on a user's network
            reason = first_line(error)
        else:
            self._compiled = compiled
            if self._ran_eagerly:
                self.may_compile, self._not_compiled = False, "torch ran it uncompiled, as its settings ask for"
            return values
        for buffer, value in before:  # statistics and noise: the forward pass may have run already
            buffer.copy_(value)
        try:
            values = self._differentiate(self._losses, inputs, targets)
        except Exception as error:  # the network itself fails
            error.add_note(f"Before this the compiled network had failed: {reason}")
            raise
        self.may_compile, self._not_compiled = False, f"it failed: {reason}"
        _log.warning("the network cannot be compiled and trains uncompiled: %s", reason)
        return values
