"""The handle to a network with quantizers attached: calibrate, train with the penalty, look, decide, fix.

    compressor = bb.attach(model, example_inputs)
    compressor.calibrate(batches)
    loss = task_loss + mu * compressor.penalty()      # in your own loop
    compressor.fix(compressor.plan())

All state lives in the network itself (see `compression.attachment`); a handle is made again by `Compressor(model)`, for
example after `copy.deepcopy` or `torch.load`.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.attachment import Attachment, check_intact, detach_from
from bayesbits.compression.budget import Budget
from bayesbits.compression.calibration import calibrate
from bayesbits.compression.diagnosis import Diagnosis
from bayesbits.compression.diagnosis_measurement import diagnose
from bayesbits.compression.final_form import write_weights
from bayesbits.compression.planning import fix_plan, read_plan
from bayesbits.compression.projection import adopt, project
from bayesbits.compression.spec import Spec
from bayesbits.cost import Cost
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.network import NAME
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.latency_table import LatencyTable
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.short_names import list_names


class Compressor:
    """The handle to a network with quantizers attached, as `attach` returns it.

    `calibrate` takes ranges from data, `penalty` is added to the loss, `parameter_groups` go to an optimizer, `cost`
    and `plan` say what the gates have decided so far, `fix` makes that final, `diagnose` says why a bit width did not
    change, and `detach` gives the float network back.

    Args:
        model: A network that has quantizers attached, for example a copy of one that `attach` was called with.

    Raises:
        ValueError: The network has no quantizers attached.

    Example::

        >>> import copy, torch, bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> compressor = bb.attach(model, torch.randn(2, 8), bb.Spec(bits=(2, 4, 8)))
        >>> compressor.calibrate([torch.randn(32, 8)])
        >>> other = bb.Compressor(copy.deepcopy(model))
        >>> other.fix(bb.Plan.uniform(other.topology, 4, 8))
        >>> other.plan().bits["0.weight"], compressor.plan().bits["0.weight"]
        (4, 8)
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        if self._attachment is None:
            raise ValueError("this network has no quantizers attached: call bayesbits.attach(model, example_inputs)")

    @property
    def _attachment(self) -> Attachment | None:
        attachment = getattr(self.model, NAME, None)
        return attachment if isinstance(attachment, Attachment) else None

    @property
    def attachment(self) -> Attachment:
        """The quantizers and gates."""
        attachment = self._attachment
        if attachment is None:
            raise ValueError("this network was detached: it is the float network again, and this handle has no use")
        return attachment

    @property
    def topology(self) -> Topology:
        """What the network is."""
        return self.attachment.topology

    @property
    def spec(self) -> Spec:
        """What was asked for when attaching."""
        return self.attachment.spec

    def calibrate(
        self,
        batches: Iterable[Any],
        method: str = "minmax",
        *,
        percentile: float = 99.99,
        reference_bits: int | None = 8,
        weight_bits: int | None = None,
        momentum: float = 0.9,
    ) -> None:
        """Take the ranges of activations from data, and those of weights from the weights.

        An activation without values below zero is unsigned; others have asymmetric ranges where the spec allows them,
        with both ends found by the method. Where the batches cannot be used, no range is changed.

        Args:
            batches: What the model is called with: tensors, tuples of positional or dicts of keyword inputs. From a
                loader of pairs pass `(x for x, _ in loader)`.
            method: "minmax" (the largest magnitude), "moving_average" (of each batch's largest magnitude),
                "percentile" (of the magnitudes) or "mse" (the least squared error of rounding). Weights have "mse"
                or "minmax".
            percentile: For "percentile": how much of the magnitudes lies inside the range, in percent.
            reference_bits: For "mse": the width at which the error is smallest; None: the narrowest one that a tensor
                may have. For other methods: the width at which the value they find is the outermost code; None: 8. A
                tensor whose width is not learned has its own width instead.
            weight_bits: The same for weights; None: `reference_bits`.
            momentum: For "moving_average": how much of the average each further batch keeps.

        Raises:
            TypeError: `batches` is one tensor, or a batch has a form that the model cannot be called with.
            ValueError: There is no batch, some values are NaN or infinite, or an option is out of its bounds.
        """
        if isinstance(batches, Tensor):
            raise TypeError("calibrate takes batches, and this is one tensor: pass [batch]")
        check_intact(self.model, self.attachment)
        calibrate(
            self.model, self.attachment, batches, method,
            percentile=percentile, reference_bits=reference_bits, weight_bits=weight_bits, momentum=momentum,
        )  # fmt: skip

    def penalty(self) -> Tensor:
        """The price of the present gates, to be added to the loss: `task_loss + mu * compressor.penalty()`.

        Returns:
            A number that is differentiable in the gates, by the formula of `Spec.penalty`.
        """
        return self.attachment.penalty()  # type: ignore[no-any-return]

    def method_loss(self, loss: Tensor) -> Tensor:
        """What another method than Bayesian Bits adds to the loss beside the penalty, such as the decay of PACT.

        `search` and `finetune` add it; a loop of your own does for methods that have such a term.

        Args:
            loss: The loss of the present batch, which gradients of "reinforce" are made from.

        Returns:
            A number to be added to the loss; 0 for methods without such a term.
        """
        term = self.attachment.method_loss(loss)
        return torch.zeros_like(loss) if term is None else term

    def expected_relative_bops(self) -> Tensor:
        """The expectation of the relative bit operations under the present gates, in percent; differentiable."""
        return self.attachment.expected_bops()  # type: ignore[no-any-return]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The parameters that learn, in groups for an optimizer.

        Parameters that were frozen by `requires_grad_(False)` are left out. Where gates or ranges are among them, a
        warning says so, as freezing all parameters of a network to keep its weights freezes these too.

        Returns:
            A dict with "name" and "params" for each of the groups "weights", "gates" and "ranges" that is not empty.
        """
        check_intact(self.model, self.attachment)
        attached = {id(parameter) for parameter in self.attachment.parameters()}
        groups = {"weights": [p for p in self.model.parameters() if id(p) not in attached and p.requires_grad]}
        for name, learnable in self.attachment.learnable().items():
            _warn_of_frozen(name, learnable)
            groups[name] = [parameter for parameter in learnable.values() if parameter.requires_grad]
        groups["ranges"] = self.attachment.learning_ranges()
        return [{"name": name, "params": parameters} for name, parameters in groups.items() if parameters]

    def cost(self, plan: Plan | None = None, table: LatencyTable | None = None) -> Cost:
        """What the network costs.

        Args:
            plan: The decision to count; the present one by default.
            table: A latency table of this network, from which milliseconds are predicted.

        Returns:
            MACs, bit operations and bytes, in all and by layer; with a table, milliseconds too.

        Raises:
            ValueError: The plan does not fit the network, or the table is that of another one.
        """
        check_intact(self.model, self.attachment)
        return self.attachment.cost_model.count(self.plan() if plan is None else plan, table)

    def plan(self) -> Plan:
        """The present decision: gates thresholded, bits by tensor, channels by layer.

        Of every group of channels at least one stays, and as many as `Spec.channel_multiple` asks for: where the gates
        kept fewer, `fix` brings some back that evaluation has left out until then.

        Returns:
            The plan; the network is not changed.
        """
        check_intact(self.model, self.attachment)
        return read_plan(self.attachment)

    def project(self, budget: Budget, *, certain: bool = False) -> Plan:
        """Move the gates onto a budget: the plan that they decide on is then within it, as near as possible to before.

        Where the present decision costs more than the budget, the gates with the smallest logits close until the
        counted cost fits; where it costs less, those with the largest logits open. Rules, groups of channels and their
        multiples are those of the spec.

        Args:
            budget: The most that the plan may cost.
            certain: Whether noise is to change no gate from now on: all logits are moved far from the decision.

        Returns:
            The plan, which is now the gates' decision; nothing is fixed.

        Raises:
            BudgetError: The budget is below the smallest cost under the spec; the message says what holds it up.
        """
        check_intact(self.model, self.attachment)
        check_gated(self, "project")
        plan = project(self.attachment, budget)
        adopt(self.attachment, plan, certain=certain)
        return plan

    def fix(self, plan: Plan | None = None) -> None:
        """Make bits and channels final; weights and ranges can still be fine-tuned.

        An operand of a residual addition that has a quantizer, and no width in the plan, stays in float. One that has
        a width in the plan, and no quantizer by the spec, stays in float too.

        Args:
            plan: The decision; the present one by default.

        Raises:
            TypeError: `plan` is no `Plan`.
            ValueError: The plan does not fit the network, or a range is not usable. Nothing is changed then.
        """
        plan = self.plan() if plan is None else plan
        if not isinstance(plan, Plan):
            raise TypeError(f"the plan is a {type(plan).__name__}; it is a bayesbits.Plan, or Plan.load(path)")
        check_intact(self.model, self.attachment)
        fix_plan(self.attachment, plan)

    def diagnose(
        self, batches: Iterable[Any], loss_fn: Callable[[Any, Any], Tensor], mu: float = 1.0, *, draws: int = 4
    ) -> Diagnosis:
        """Find out why a bit width did not change: signal to noise, probabilities and gradients, by tensor.

        The network is left as it was.

        Args:
            batches: Pairs of inputs and targets.
            loss_fn: The task's loss, `loss_fn(output, targets)`.
            mu: The weight of the penalty in the loss.
            draws: How often every batch is run, each time with a new draw of the gates.

        Returns:
            The findings; `print` shows them as a table.
        """
        check_gated(self, "diagnose")
        return diagnose(
            self.model, self.attachment.quantizers, lambda: mu * self.penalty(), batches, loss_fn, draws=draws
        )

    def detach(self) -> nn.Module:
        """Make the network the float network again, in place, with the weights that it has now.

        Those of LR-Net are the likeliest ones, once the network was calibrated; a warning names weights that are
        computed from other parameters, and cannot be written.

        Returns:
            The network. This handle has no use any more.
        """
        attachment = self.attachment
        if attachment.calibrated:
            self._write_held_weights(attachment)
        detach_from(self.model)
        return self.model

    def _write_held_weights(self, attachment: Attachment) -> None:
        """Write weights that quantizers hold into the layers, of those that were not replaced."""
        held = {
            name: quantizer
            for name, quantizer in attachment.quantizers.items()
            if quantizer.holds_weight and _is_attached(self.model, attachment.topology.weight_tensors[name][0])
        }
        with evaluation_mode(self.model):
            computed = write_weights(self.model, attachment, held)
        if computed:
            warnings.warn(
                f"{list_names(computed)}: computed from other parameters, and what was learned cannot be written into "
                "these: they stay as they were",
                stacklevel=3,
            )

    def __str__(self) -> str:
        if self._attachment is None:
            return repr(self)
        lines = [str(self.cost())]
        for group in self.topology.groups:
            if group.reason is not None and group.producers:
                lines.append(f"{group.name or 'the network'} keeps all {group.size} channels: {group.reason}")
        for entry in self.topology.unsupported:
            macs = f", {entry.macs} MACs at 32 bits" if entry.macs else ""
            lines.append(f"{entry.name or 'the network'} ({entry.what}{macs}): {entry.reason}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        if self._attachment is None:
            return "Compressor of a network that was detached"
        return (
            f"Compressor of {len(self.topology.layers)} layers, {self.cost().relative_bops:.4g}% of the bit operations"
        )


def _is_attached(model: nn.Module, name: str) -> bool:
    """Whether a layer still is the one that was attached to."""
    with suppress(AttributeError):
        return isinstance(find_layer(model, name), AttachedLayer)
    return False


def check_compressor(compressor: Any, what: str) -> None:
    """Raise unless this is the handle that `attach` returned."""
    if not isinstance(compressor, Compressor):
        raise TypeError(
            f"{what} takes the Compressor that attach returned, and this is a {type(compressor).__name__}: pass "
            "bayesbits.attach(model, example_inputs), or Compressor(model) of a network with quantizers attached"
        )


def check_gated(compressor: Compressor, what: str, *, learns: bool = False) -> None:
    """Raise where another method than Bayesian Bits was attached; `learns`: also where gates have another gradient."""
    method = compressor.attachment.method
    if not method.gated or (learns and method.gates is not None):
        raise ValueError(
            f"{what} needs the quantizers of Bayesian Bits, and this network was attached with method={method.name!r}: "
            "train it by search with a mu, or attach with the default method"
        )


def _warn_of_frozen(what: str, parameters: Mapping[str, nn.Parameter]) -> None:
    frozen = [name for name, parameter in parameters.items() if parameter.numel() and not parameter.requires_grad]
    if frozen:
        named = list_names(frozen)
        warnings.warn(
            f"{len(frozen)} of {len(parameters)} {what} were frozen by requires_grad_(False) and are left out, not to "
            f"learn: {named}. To freeze the weights alone, leave out compressor.attachment.parameters(), or "
            "freeze them before attaching",
            stacklevel=3,
        )
