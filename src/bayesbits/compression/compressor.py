"""The handle to a network with quantizers attached: calibrate, train with the penalty, look, decide, fix.

    compressor = bb.attach(model, example_inputs)
    compressor.calibrate(batches)
    loss = task_loss + mu * compressor.penalty()      # in your own loop
    compressor.fix(compressor.plan())

All state lives in the network itself (see `graph.attach`); a handle is made anew by `Compressor(model)`, for example
after `copy.deepcopy` or `torch.load`.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from bayesbits.compression.attachment import Attachment, attach_to, check_free, check_intact, detach_from
from bayesbits.compression.calibration import calibrate_activations, calibrate_weight
from bayesbits.compression.diagnose import diagnose
from bayesbits.compression.diagnosis import Diagnosis
from bayesbits.compression.penalties import Objective
from bayesbits.compression.spec import Spec
from bayesbits.cost import Cost, CostModel
from bayesbits.cost.bops import FLOAT_BITS
from bayesbits.graph.trace import trace
from bayesbits.nn import GatedQuantizer
from bayesbits.nn.attached import AttachedLayer
from bayesbits.nn.network import NAME
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.torch_private import tree_map_only


def attach(model: nn.Module, example_inputs: Any, spec: Spec | None = None) -> "Compressor":
    """Make every layer of a network learn its bits and channels, in place; returns the handle.

    `example_inputs` is a tensor, a tuple of positional inputs or a dict of keyword inputs, on the model's device. It is
    used to read the network; costs are counted for inputs of this shape. Where attaching fails, the network is left as
    it was.
    """
    check_free(model)
    spec = Spec() if spec is None else spec
    if not isinstance(spec, Spec):
        raise TypeError(f"the spec is a {type(spec).__name__}; it is a bayesbits.Spec, such as Spec(bits=(2, 4, 8))")
    topology = trace(model, example_inputs)
    try:
        attachment = attach_to(model, topology, spec)
        attachment.example_inputs = tree_map_only(Tensor, Tensor.detach, split_inputs(example_inputs))
        # Children of the attachment, so that their constants move with the network; none has state of its own.
        attachment.cost_model = CostModel(topology).to(next(model.parameters()).device)
        attachment.objective = _objective(attachment, spec.penalty)
        attachment.expectation = _objective(attachment, "expected_bops")
        compressor = Compressor(model)
        compressor._calibrate_weights("minmax")
    except BaseException:
        detach_from(model)
        raise
    return compressor


class Compressor:
    """The handle to a network with quantizers attached.

    `calibrate` takes ranges from data, `penalty` is what the loss adds, `parameter_groups` is what an optimizer takes,
    `cost` and `plan` say what the gates have decided so far, `fix` makes it final, `diagnose` says why a bit did not
    move, and `detach` gives the float network back. `topology` and `spec` are what was read and what was asked for.
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

    @property
    def _cost_model(self) -> CostModel:
        model = self.attachment.cost_model
        assert isinstance(model, CostModel)
        return model

    def calibrate(
        self,
        batches: Iterable[Any],
        method: str = "minmax",
        *,
        percentile: float = 99.99,
        reference_bits: int = 8,
        momentum: float = 0.9,
    ) -> None:
        """Take the ranges of activations from data, and those of weights from the weights.

        A batch is what the model is called with: a tensor, a tuple of positional or a dict of keyword inputs; from a
        loader of pairs pass `(x for x, _ in loader)`. `method` is "minmax", "moving_average" (over the batches, with
        `momentum`), "percentile" (of the magnitudes) or "mse" (least squared error at `reference_bits`, or at the width
        of a tensor whose width is not learned).
        """
        if isinstance(batches, Tensor):
            raise TypeError("calibrate takes batches, and this is one tensor: pass [batch]")
        check_intact(self.model, self.attachment)
        weights = self.topology.weight_tensors
        quantizers = {name: q for name, q in self.attachment.quantizers.items() if name not in weights}
        options = {"percentile": percentile, "reference_bits": reference_bits, "momentum": momentum}
        before, self.attachment.calibrated = self.attachment.calibrated, True
        try:
            calibrate_activations(self.model, quantizers, batches, method=method, **options)  # type: ignore[arg-type]
            self._calibrate_weights(method if method == "mse" else "minmax", reference_bits)
        except BaseException:
            self.attachment.calibrated = before
            raise

    def _calibrate_weights(self, method: str, reference_bits: int = 8) -> None:
        for parameter, layers in self.topology.weight_tensors.items():
            quantizer = self.attachment.quantizers.get(parameter)
            if quantizer is not None:
                layer = self.model.get_submodule(layers[0])
                assert isinstance(layer, AttachedLayer)
                calibrate_weight(
                    quantizer, layer.folded_weight().detach(), parameter, method=method, reference_bits=reference_bits
                )

    def penalty(self) -> Tensor:
        """The price of the present gates, to be added to the loss: `task_loss + mu * compressor.penalty()`."""
        objective = self.attachment.objective
        assert isinstance(objective, Objective)
        return objective()  # type: ignore[no-any-return]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What learns, for an optimizer: the groups "weights", "gates" and "ranges", without those that are empty.

        Parameters that were frozen by `requires_grad_(False)` are left out. Where gates or ranges are among them, a
        warning says so, as freezing all parameters of a network to keep its weights freezes these too.
        """
        check_intact(self.model, self.attachment)
        attached = {id(parameter) for parameter in self.attachment.parameters()}
        groups = {"weights": [p for p in self.model.parameters() if id(p) not in attached and p.requires_grad]}
        for name, learnable in self.attachment.learnable().items():
            _warn_of_frozen(name, learnable)
            groups[name] = [parameter for parameter in learnable.values() if parameter.requires_grad]
        return [{"name": name, "params": parameters} for name, parameters in groups.items() if parameters]

    def cost(self, plan: Plan | None = None) -> Cost:
        """What the network costs by the present decision, or by a plan."""
        check_intact(self.model, self.attachment)
        return self._cost_model.count(self.plan() if plan is None else plan)

    def expected_relative_bops(self) -> Tensor:
        """The expectation of the relative bit operations under the present gates, in percent; differentiable."""
        expectation = self.attachment.expectation
        assert isinstance(expectation, Objective)
        return expectation()  # type: ignore[no-any-return]

    def plan(self) -> Plan:
        """The present decision: gates thresholded, bits by tensor, channels by layer.

        Of every group of channels at least one stays, and as many as `Spec.channel_multiple` asks for: where the gates
        kept fewer, `fix` brings some back that evaluation has left out until then.
        """
        check_intact(self.model, self.attachment)
        bits = dict.fromkeys(self.topology.weight_tensors, FLOAT_BITS)
        bits |= {activation.name: FLOAT_BITS for activation in self.topology.activations}
        bits |= {name: q.effective_bits() for name, q in self.attachment.quantizers.items() if q.mode != "off"}
        kept = _kept_channels(self.attachment)
        for parameter, layers in self.topology.weight_tensors.items():
            if all(kept.get(layer) == () for layer in layers):
                bits[parameter] = 0  # a branch that vanished beside a residual way round
        return Plan(bits=bits, kept=kept)

    def fix(self, plan: Plan | None = None) -> None:
        """Make bits and channels final; weights and ranges can still be fine-tuned. Without a plan: the present one.

        Where something does not fit, or a range is not usable, it raises and nothing is changed.
        """
        plan = self.plan() if plan is None else plan
        if not isinstance(plan, Plan):
            raise TypeError(f"the plan is a {type(plan).__name__}; it is a bayesbits.Plan, or Plan.load(path)")
        plan.check(self.topology)
        check_intact(self.model, self.attachment)
        quantizers, gates = self.attachment.quantizers, self.attachment.channel_gates
        for name, bits in plan.bits.items():
            if name not in quantizers and bits != FLOAT_BITS:
                raise ValueError(f"the plan gives {name} {bits} bits, but it was left in float when attaching")
        for name in plan.kept:
            if name not in gates:
                raise ValueError(f"the plan removes channels of {name}, which was not to be pruned when attaching")
        for name in plan.bits:
            if name in quantizers:
                quantizers[name].check_range(name)
        for name, quantizer in quantizers.items():
            _fix(quantizer, plan.bits.get(name))
        for name, gate in gates.items():
            every = range(gate.gates.logits.numel())
            kept = set(plan.kept.get(name, every))
            gate.fix([channel in kept for channel in every])

    def diagnose(
        self, batches: Iterable[Any], loss_fn: Callable[[Any, Any], Tensor], mu: float = 1.0, *, draws: int = 4
    ) -> Diagnosis:
        """Why did a bit not move? Signal to noise, probabilities, and the gradients of task and penalty, by tensor.

        `batches` yields pairs of inputs and targets, `loss_fn(output, targets)` is the task's loss, and `mu` is the
        weight of the penalty in the loss. Every batch is run with `draws` draws of the gates.
        """
        return diagnose(
            self.model, self.attachment.quantizers, lambda: mu * self.penalty(), batches, loss_fn, draws=draws
        )

    def detach(self) -> nn.Module:
        """Give the float network back, with the weights that it has now."""
        _ = self.attachment  # raises where there is none any more
        detach_from(self.model)
        return self.model

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


def check_compressor(compressor: Any, what: str) -> None:
    """Raise unless this is the handle that `attach` returned."""
    if not isinstance(compressor, Compressor):
        raise TypeError(
            f"{what} takes the Compressor that attach returned, and this is a {type(compressor).__name__}: pass "
            "bayesbits.attach(model, example_inputs), or Compressor(model) of a network with quantizers attached"
        )


def _objective(attachment: Attachment, kind: str) -> Objective:
    spec, cost_model = attachment.spec, attachment.cost_model
    assert isinstance(cost_model, CostModel)
    return Objective(
        attachment.topology, attachment.quantizers, attachment.channel_gates, kind,
        num_examples=spec.num_examples, cost_model=cost_model,
    )  # fmt: skip


def _warn_of_frozen(what: str, parameters: Mapping[str, nn.Parameter]) -> None:
    frozen = [name for name, parameter in parameters.items() if parameter.numel() and not parameter.requires_grad]
    if frozen:
        named = ", ".join(frozen[:3]) + (f" and {len(frozen) - 3} more" if len(frozen) > 3 else "")
        warnings.warn(
            f"{len(frozen)} of {len(parameters)} {what} were frozen by requires_grad_(False) and are left out, not to "
            f"learn: {named}. To freeze the weights alone, leave out compressor.attachment.parameters(), or "
            "freeze them before attaching",
            stacklevel=3,
        )


def _fix(quantizer: GatedQuantizer, bits: int | None) -> None:
    """A tensor that the plan does not name has no quantizer in it: the operands of additions, if they stay in float."""
    if bits is None:
        quantizer.turn_off()
    else:
        quantizer.fix(bits)


def _kept_channels(attachment: Attachment) -> dict[str, tuple[int, ...]]:
    """The output channels that stay, of every layer that loses some.

    Of every group at least one channel stays, and at least the next multiple that the spec asks for: the channels with
    the largest logits are taken back. What was fixed is final, whatever its number.
    """
    topology, multiple = attachment.topology, attachment.spec.channel_multiple
    gates = attachment.channel_gates
    kept = {name: gate.kept().tolist() for name, gate in gates.items()}
    logits = {name: gate.gates.logits.detach().tolist() for name, gate in gates.items()}
    for group in topology.removable_groups:
        makers: dict[int, list[tuple[str, int]]] = {channel: [] for channel in group.channels}
        full = [topology.layer(name) for name in group.producers if not topology.layer(name).depthwise]
        if not full or any(layer.name not in gates or gates[layer.name].fixed for layer in full):
            continue
        for layer in full:
            for index, channel in enumerate(layer.out_channels):
                if channel in makers:
                    makers[channel].append((layer.name, index))
        present = {channel: any(kept[name][index] for name, index in makers[channel]) for channel in group.channels}
        wanted = min(group.size, max(1, -(-sum(present.values()) // multiple)) * multiple)
        strongest = {channel: max(makers[channel], key=lambda at: logits[at[0]][at[1]]) for channel in group.channels}
        absent = [channel for channel in group.channels if not present[channel]]
        absent.sort(key=lambda channel: -logits[strongest[channel][0]][strongest[channel][1]])
        for channel in absent[: wanted - sum(present.values())]:
            name, index = strongest[channel]
            kept[name][index] = True
    return {
        name: tuple(index for index, stays in enumerate(mask) if stays) for name, mask in kept.items() if not all(mask)
    }
