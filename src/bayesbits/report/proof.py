"""The section about verification: what was proven about the integer network, or that nothing was."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from bayesbits.report.elements import code, facts, paragraph, section, table
from bayesbits.report.markup import Markup
from bayesbits.report.verification import Verified

_TITLE = "Is the integer network the one that was trained?"


def proof_section(verified: Verified | None, folder: Path) -> Markup:
    """What was compared and found equal."""
    if verified is None:
        return section(
            _TITLE,
            paragraph("Not verified: nothing here says that an integer network computes what was trained. ",
                      "To deploy, run and compare it: ", code(f"bayesbits verify {quote(str(folder))}"), "."),
        )  # fmt: skip
    integer = len(verified.layers) - len(verified.in_float)
    instructions = ", ".join(verified.instructions) or "none of its own for integers"
    pairs = [
        ("In the file", f"{verified.weights:,} codes of weights and {verified.biases:,} biases, all equal"),
        ("Runtime against integer network", f"{verified.exact_differing:,} of {verified.exact_values:,} values differ, "
         f"where all have to be equal bit by bit (tensors: {verified.exact_places:,})"),
        ("Integer network against training", f"{verified.differing_codes:,} of {verified.codes:,} activation codes "
         f"differ; {verified.flipped:,} of {verified.inputs:,} decisions do"),
        ("Integer kernels", f"{integer} of {len(verified.layers)} layers"),
        ("Runtime", verified.runtime),
        ("CPU", f"{verified.cpu} ({instructions})"),
    ]  # fmt: skip
    parts = [facts(pairs, "The verification")]
    if verified.in_float:
        rows = [(code(kernel.layer), kernel.operation, kernel.reason) for kernel in verified.in_float]
        parts.append(table("Layers that do not run in integers.", ("layer", "operation", "reason"), rows, texts=3))
    return section(_TITLE, *parts)
