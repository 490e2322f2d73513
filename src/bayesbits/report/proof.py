"""The section about verification: what was proven about the integer network, or that nothing was."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from bayesbits.deploy.verification.record import Place, Verification
from bayesbits.report.elements import code, facts, paragraph, section, table
from bayesbits.report.markup import Markup

_TITLE = "Is the integer network the one that was trained?"


def proof_section(verification: Verification | None, folder: Path) -> Markup:
    """What was compared, and how much of it was equal."""
    if verification is None:
        return section(
            _TITLE,
            paragraph(
                "Not verified: nothing here says that an integer network computes what was trained. To deploy, run and "
                "compare it: ",
                code(f"bayesbits verify {quote(str(folder))}"),
                ", and then this page again.",
            ),
        )
    others = [kernel for kernel in verification.kernels if not kernel.integer]
    parts = [facts(_found(verification), "The verification")]
    if others:
        rows = [(code(kernel.layer), kernel.operation, kernel.reason or "") for kernel in others]
        parts.append(table("Layers that do not run in integers.", ("layer", "operation", "reason"), rows, texts=3))
    return section(_TITLE, *parts)


def _found(verification: Verification) -> list[tuple[str, str]]:
    machine, simulated = verification.machine, verification.simulated
    exact = [place for place in verification.places if place.exact]
    close = [place for place in verification.places if not place.exact]
    pairs = [
        ("In the file", f"{verification.weights:,} codes of weights and {verification.biases:,} biases, all equal"),
        ("Runtime against integer network", f"{_differing(exact)} where all have to be equal bit by bit"),
    ]
    if close:
        error = max(place.relative_error for place in close)
        pairs.append(("Behind float operations", f"{_differing(close)}; relative error at most {error:.1e}"))
    return [
        *pairs,
        ("Integer network against training", f"{simulated.differing_codes:,} of {simulated.codes:,} activation codes "
         f"differ; {simulated.flipped:,} of {simulated.inputs:,} decisions do"),
        ("Integer kernels", f"{len(verification.integer_layers)} of {len(verification.kernels)} layers"),
        ("Runtime", machine.runtime),
        ("CPU", f"{machine.cpu} ({', '.join(machine.integer_instructions) or 'no instructions for integers'})"),
    ]  # fmt: skip


def _differing(places: list[Place]) -> str:
    differing, values = sum(place.differing for place in places), sum(place.values for place in places)
    return f"{differing:,} of {values:,} values differ"
