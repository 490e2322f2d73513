"""Scores of a network with many settings of its widths, batch by batch, and a file from which measuring resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesbits.baselines.sensitivity_cache import CachedForward
from bayesbits.compression.compressor import Compressor
from bayesbits.records.serialization import Record
from bayesbits.utils.batches import count_examples
from bayesbits.utils.torch_private import tree_leaves

ScoreFunction = Callable[[Any, Any], Tensor]
"""Is called with the network's output and the targets; returns the mean score of the batch, higher is better."""
Widths = Mapping[str, int]
"""The bits of tensors by their names."""


@dataclass(frozen=True)
class Measured(Record):
    """The scores that were measured so far."""

    VERSION: ClassVar[int] = 2

    digest: str
    """A digest of everything that the scores depend on: the network, its ranges, the examples and the widths."""
    alone: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """For every finished batch the scores of the settings in which one tensor is changed; for each setting one score,
    and where there is a second score function, the second one."""
    path: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """The same for the settings in which changes accumulate."""
    version: int = VERSION
    """The version of the JSON form."""


class Measurement:
    """Scores settings on all batches, and saves the scores to a file where one is given."""

    def __init__(
        self,
        compressor: Compressor,
        inputs: list[Any],
        targets: list[Any],
        score_fns: tuple[ScoreFunction, ...],
        *,
        about: str,
        path: Path | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """All score functions are applied in one pass. `about` describes what else the scores depend on."""
        self.compressor, self.inputs, self.targets, self.score_fns = compressor, inputs, targets, score_fns
        self.path, self.progress = path, progress
        self.measured = Measured(_digest(compressor, [*inputs, *targets], about))
        if path is not None and path.exists():
            found = _load(path)
            if found.digest != self.measured.digest:
                raise ValueError(
                    f"{path} holds measurements of another network, other examples or other widths: "
                    "delete it, or give another file"
                )
            self.measured = found

    def scores(self, kind: str, settings: Sequence[Widths]) -> list[tuple[float, ...]]:
        """The scores of every setting, averaged over the examples; `kind` is "alone" or "path", as in `Measured`."""
        for number in range(len(getattr(self.measured, kind)), len(self.inputs)):
            done = (*getattr(self.measured, kind), self._batch_scores(number, settings, chain=kind == "path"))
            self.measured = replace(self.measured, alone=done) if kind == "alone" else replace(self.measured, path=done)
            if self.path is not None:
                self.measured.save(self.path)
            if self.progress is not None:
                words = {"alone": "each tensor alone", "path": "one after the other"}[kind]
                self.progress(f"{words}: {len(done)} of {len(self.inputs)} batches, {len(settings)} settings each")
        counts = torch.tensor([count_examples(batch) for batch in self.inputs], dtype=torch.float64)
        by_batch = torch.tensor(getattr(self.measured, kind), dtype=torch.float64)
        means = torch.tensordot(counts, by_batch, dims=1) / counts.sum()
        return [tuple(scores) for scores in means.tolist()]

    def _batch_scores(self, number: int, settings: Sequence[Widths], *, chain: bool) -> tuple[tuple[float, ...], ...]:
        """The scores on one batch; with `chain` a run reuses outputs of the run before it, otherwise of the first."""
        quantizers = self.compressor.attachment.quantizers
        forward = CachedForward(self.compressor.model, self.inputs[number])
        recorded: Widths | None = None
        scores = []
        with torch.no_grad():
            for widths in settings:
                for name, bits in widths.items():
                    quantizers[name].enter("fixed", bits)
                changed = None
                if recorded is not None:
                    changed = {quantizers[name] for name, bits in widths.items() if recorded[name] != bits}
                record = chain or recorded is None
                output = forward.run(changed, record=record)
                recorded = widths if record else recorded
                scores.append(torch.stack([score(output, self.targets[number]).double() for score in self.score_fns]))
        return tuple(tuple(one) for one in torch.stack(scores).tolist())


def _load(path: Path) -> Measured:
    try:
        return Measured.load(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}. Delete it, or give another file") from error


def _digest(compressor: Compressor, examples: list[Any], about: str) -> str:
    """A digest of the network's weights and statistics, of its ranges, and of the examples; gates do not count."""
    model, attachment = compressor.model, compressor.attachment
    attached = {id(tensor) for tensor in (*attachment.parameters(), *attachment.buffers())}
    own = [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in attached]
    ranges = [(q.range_parameters(), torch.tensor(q.signed)) for q in attachment.quantizers.values()]
    return digest_of([own, ranges, examples], about)


def digest_of(values: Any, about: str = "") -> str:
    """A digest of a text and of all tensors in a structure: their values, types and shapes."""
    digest = hashlib.sha256(about.encode())
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor):
            flat = leaf.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{flat.dtype} {tuple(leaf.shape)}".encode())
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()
