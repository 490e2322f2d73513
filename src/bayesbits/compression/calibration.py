"""Calibration: every quantizer gets its range and sign from data.

The float network runs over a few batches while every quantizer is switched off, and an observer looks at the tensors
that each one will quantize (see `compression.range_observer`). Until all of them are known to be usable, nothing is
changed. The methods are those of `compression.range_estimation`.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.observers import channels_seen, first_statistics_taken, network_restored, observing
from bayesbits.compression.range_estimation import (
    FINE_BITS,
    RangeOptions,
    end_of_range,
    least_error,
    percentile_of_magnitudes,
    set_asymmetric_range,
    set_range,
)
from bayesbits.compression.range_observer import RangeObserver, SeenValues
from bayesbits.compression.sampling import SAMPLE, evenly_spaced, in_rows
from bayesbits.functional.operation import LARGEST_RANGE
from bayesbits.nn import Quantizer
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.topology import Clip
from bayesbits.utils.batches import call_without_labels


def calibrate(
    model: nn.Module,
    attachment: Attachment,
    batches: Iterable[Any],
    method: str,
    *,
    percentile: float,
    reference_bits: int | None,
    momentum: float,
    weight_bits: int | None = None,
) -> None:
    """Set the ranges of all activations from data, and those of all weights from the weights.

    `reference_bits` is the reference width of activations, and without `weight_bits` of weights too.
    """
    quantizers = calibrated_quantizers(attachment)
    before, attachment.calibrated = attachment.calibrated, True
    try:
        with channels_seen(model, attachment.steady_channels):
            calibrate_activations(
                model, quantizers, batches,
                method=method, percentile=percentile, reference_bits=reference_bits, momentum=momentum,
                always_signed=not attachment.spec.unsigned_activations, clips=attachment.topology.clips,
            )  # fmt: skip
        if method != "mse" or reference_bits == attachment.spec.output_bits:
            _share_ranges(attachment)
        weight_method = method if method == "mse" else "minmax"
        calibrate_weights(
            model, attachment, weight_method, reference_bits if weight_bits is None else weight_bits, again=before
        )
    except BaseException:
        attachment.calibrated = before
        raise


def calibrated_quantizers(attachment: Attachment) -> dict[str, Quantizer]:
    """The quantizers whose ranges come from data: those of activations, but where a range is that of each tensor."""
    weights = attachment.topology.parameter_tensors
    return {name: q for name, q in attachment.quantizers.items() if name not in weights and not q.dynamic}


def _share_ranges(attachment: Attachment) -> None:
    """Give tensors that hold the same values, or parts of them, the one range that covers all of theirs."""
    for family in attachment.topology.shared_ranges:
        members = [attachment.quantizers[name] for name in family if name in attachment.quantizers]
        members = [one for one in members if not one.dynamic]
        if not members or any(one.needs_sample for one in members):  # which have a range of their own method
            continue
        high = max(one.beta.item() for one in members)
        low = min(_lower_end(one) for one in members)
        asymmetric = low < 0 and all(one.may_be_asymmetric for one in members)
        for one in members:
            if asymmetric:
                one.set_range(high, alpha=low)
            else:
                one.set_range(max(high, -low), signed=low < 0)


def _lower_end(quantizer: Quantizer) -> float:
    """alpha, of a range of any kind."""
    if quantizer.alpha is not None:
        return quantizer.alpha.item()
    return -quantizer.beta.item() if quantizer.signed else 0.0


def calibrate_activations(
    model: nn.Module,
    quantizers: Mapping[str, Quantizer],
    batches: Iterable[Any],
    *,
    method: str = "minmax",
    percentile: float = 99.99,
    reference_bits: int | None = 8,
    momentum: float = 0.9,
    always_signed: bool = False,
    clips: Iterable[Clip] = (),
) -> None:
    """Set range and sign of the activation quantizers inside `model` from what the float network computes.

    `quantizers` maps names of tensors to quantizers. A batch holds the inputs of the model, on its device. A range is
    signed where a value below zero was seen, or always, and asymmetric where its quantizer allows that. What `clips`
    take away of a tensor is not seen. Whether a quantizer learns, is fixed or off stays as it was. Batch norms that
    have never run take their statistics from these batches too: those they start with would mislead.
    """
    observers = {
        name: RangeObserver(
            RangeOptions(
                method, percentile, _reference_width(quantizer, reference_bits, method), momentum, always_signed
            ),
            sampling=quantizer.needs_sample,
        )
        for name, quantizer in quantizers.items()
    }
    count = 0
    with (
        network_restored(model),
        first_statistics_taken(model) as fresh,
        observing(quantizers, observers, clips),
        torch.no_grad(),
    ):
        for module in model.modules():
            if isinstance(module, Quantizer):
                module.turn_off()
        for batch in batches:
            call_without_labels(model, batch)
            count += 1
            for observer in observers.values():
                observer.end_batch()
        statistics = [(buffer, buffer.clone()) for norm in fresh for buffer in norm.buffers()]
    if count == 0 and observers:
        raise ValueError("calibration needs at least one batch, and there was none")
    seen = {name: observer.read() for name, observer in observers.items() if observer.batches}
    _check_values(seen)
    with torch.no_grad():
        for buffer, value in statistics:
            buffer.copy_(value)
    for name, observer in observers.items():
        problem: str | None = "no values reached its quantizer (an unused layer?); its range is left as it was"
        if name in seen:
            problem = _set_seen_range(quantizers[name], observer, seen[name])
        if problem is not None:
            warnings.warn(f"{name}: {problem}", stacklevel=2)


def _set_seen_range(quantizer: Quantizer, observer: RangeObserver, seen: SeenValues) -> str | None:
    """Set the range of an activation: asymmetric where values below zero were seen and the quantizer allows it."""
    if seen.signed and quantizer.may_be_asymmetric:
        return set_asymmetric_range(quantizer, observer.ends(seen), seen.extremes)
    problem = set_range(quantizer, observer.end(seen), seen.largest, signed=seen.signed)
    if quantizer.needs_sample:
        quantizer.start(torch.cat(observer.sample, dim=1))
    return problem


def calibrate_weights(
    model: nn.Module,
    attachment: Attachment,
    method: str = "minmax",
    reference_bits: int | None = 8,
    *,
    again: bool = False,
) -> None:
    """Set the ranges of all weights and tables from the weights as they are deployed, batch norms folded.

    `again`: the network was calibrated before, and what holds its weight by now may have learned; it stays.
    """
    for parameter in attachment.topology.table_tensors:
        quantizer = attachment.quantizers.get(parameter)
        if quantizer is not None:
            weight = model.get_parameter(parameter).detach()
            calibrate_weight(quantizer, weight, parameter, method=method, reference_bits=reference_bits)
    for parameter, layers in attachment.topology.weight_tensors.items():
        quantizer = attachment.quantizers.get(parameter)
        if quantizer is not None and not (again and quantizer.holds_weight):
            layer = find_layer(model, layers[0])
            assert isinstance(layer, AttachedLayer)
            rows = layer.ranged_rows(layer.folded_weight().detach())
            calibrate_weight(quantizer, rows, parameter, method=method, reference_bits=reference_bits)


def calibrate_weight(
    quantizer: Quantizer,
    weight: Tensor,
    name: str,
    *,
    method: str = "minmax",
    reference_bits: int | None = 8,
    percentile: float = 99.99,
) -> None:
    """Set the range of a weight quantizer, or its ranges where it has one for each index of axis 0; always signed.

    `moving_average` is `minmax` here, as there is only one weight. A channel of zeros gets the range of the tensor.
    """
    options = RangeOptions(method, percentile, _reference_width(quantizer, reference_bits, method))
    count = quantizer.range_shape.numel()
    if weight.numel() == 0 or (count > 1 and weight.shape[0] != count):
        raise ValueError(f"{name}: a weight of shape {tuple(weight.shape)} does not fit a quantizer of {count} ranges")
    rows = in_rows(weight, count)
    largest = rows.abs().amax(dim=1)
    if not bool((largest <= LARGEST_RANGE).all()):
        raise ValueError(f"{name}: some of its values are NaN, infinite or larger than {LARGEST_RANGE}")
    if method == "mse":
        ends = least_error(evenly_spaced(rows, SAMPLE), largest, options.reference_bits, signed=True)
    else:
        inside = percentile_of_magnitudes(rows, percentile) if method == "percentile" else largest
        ends = end_of_range(inside, options.reference_bits, signed=True)
    problem = set_range(quantizer, ends.cpu(), largest.cpu(), signed=True)
    if quantizer.needs_sample:
        quantizer.start(weight)
    if problem is not None:
        warnings.warn(f"{name}: {problem}", stacklevel=2)


def _reference_width(quantizer: Quantizer, wanted: int | None, method: str) -> int:
    """The width that a range is made for: the only one or the final one, else what is wanted.

    Else it is the narrowest for the least error, which depends on the width most, and a fine one for other methods.
    """
    own = quantizer.bits[0] if len(quantizer.bits) == 1 else quantizer.fixed_bits
    return own or wanted or (quantizer.bits[0] if method == "mse" else FINE_BITS)


def _check_values(seen: Mapping[str, SeenValues]) -> None:
    """Raise where values cannot be quantized, with the first batch of them and the first tensor in it."""
    wrong = [
        (batch, order, name)
        for order, (name, one) in enumerate(seen.items())
        for batch, usable in zip(one.batches, (one.magnitudes <= LARGEST_RANGE).tolist(), strict=True)
        if not usable
    ]
    if wrong:
        batch, _, name = min(wrong)
        raise ValueError(
            f"{name}: batch {batch} (the first is 0) has values that are NaN, infinite or larger than {LARGEST_RANGE}; "
            "no range was changed"
        )
