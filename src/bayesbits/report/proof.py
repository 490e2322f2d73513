"""The section about verification: what was proven about the integer network, that it failed, or that nothing was."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from bayesbits.deploy.verification.result import RuntimeTensor, Verification
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
    if verification.failure is not None:
        parts.insert(0, paragraph("The verification failed: the integer network is not the one that was trained, or "
                                  "not the one in the file. ", code(verification.failure)))  # fmt: skip
    if verification.wrong or verification.tied:
        counted = [
            (code(tensor.name), f"{tensor.codes:,}", f"{tensor.ties:,}", f"{tensor.wrong:,}")
            for tensor in (*verification.wrong, *(one for one in verification.tied if not one.wrong))
        ]
        head = ("tensor", "codes", "differ beside a tie", "differ elsewhere")
        parts.append(table("Tensors with codes that are not the simulation's, with equal inputs.", head, counted))
    if others:
        rows = [(code(kernel.layer), kernel.operation, kernel.reason or "") for kernel in others]
        parts.append(table("Layers that do not run in integers.", ("layer", "operation", "reason"), rows, texts=3))
    return section(_TITLE, *parts)


def _found(verification: Verification) -> list[tuple[str, str]]:
    machine, simulated = verification.machine, verification.simulated
    exact = [place for place in verification.runtime_tensors if place.exact]
    close = [place for place in verification.runtime_tensors if not place.exact]
    wrong = sum(tensor.wrong for tensor in verification.wrong)
    pairs = [
        ("Derived anew from plan and weights", str(verification.derived)),
        ("In the file", str(verification.stored)),
        ("Integer network against training, layer by layer",
         f"{simulated.ties:,} of {simulated.codes:,} activation codes differ beside a tie, {wrong:,} elsewhere"),
        ("End to end", f"{simulated.differing_end_to_end:,} activation codes differ"),
        *((f"Output {output.name}, end to end", f"off by {output.relative_error_end_to_end:.1e} of the largest"
           f"{output.predictions_end_to_end}") for output in simulated.outputs),
        ("Runtime against integer network", f"{_differing(exact)} where all have to be equal bit by bit"),
    ]  # fmt: skip
    if close:
        error = max(place.relative_error for place in close)
        pairs.append(("Behind float operations", f"{_differing(close)}; relative error at most {error:.1e}"))
    pairs += [
        (
            f"Output {place.output} of the file, end to end",
            f"off by {place.relative_error_end_to_end:.1e} of the largest{place.predictions_end_to_end}",
        )
        for place in verification.outputs
    ]
    return [
        *pairs,
        ("Integer kernels", f"{len(verification.integer_layers)} of {len(verification.kernels)} layers"),
        ("Runtime", machine.runtime),
        ("CPU", f"{machine.cpu} ({', '.join(machine.integer_instructions) or 'no instructions for integers'})"),
    ]


def _differing(places: list[RuntimeTensor]) -> str:
    differing, values = sum(place.differing for place in places), sum(place.values for place in places)
    return f"{differing:,} of {values:,} values differ"
