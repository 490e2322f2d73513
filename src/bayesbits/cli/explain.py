"""Runs `bayesbits explain`: the paper's decomposition of a tensor of a run into 2 bits and residuals."""

from pathlib import Path

from rich.table import Table

from bayesbits.cli.console import output_console, print_line
from bayesbits.compression.decomposition import Decomposition, decompose
from bayesbits.recipes.data import first_examples, inputs_of
from bayesbits.recipes.run import restore
from bayesbits.recipes.statistics import EXAMPLES
from bayesbits.report.formatting import format_percent


def run_explain(folder: Path, tensor: str | None) -> None:
    """Show the terms of a tensor; without a name, the tensors of the run with their bits."""
    run = restore(folder, "cpu")
    if tensor is None:
        print_line("The tensors of this run; give the name of one to see its decomposition:")
        for name in run.compressor.attachment.quantizers:
            print_line(f"  {name}  {run.plan.bits[name]} bits")
        return
    inputs = first_examples((inputs_of(batch) for batch in run.loaders.test), EXAMPLES)
    show(decompose(run.compressor, tensor, inputs))


def show(found: Decomposition) -> None:
    """Print the terms as a table, and a few values term by term."""
    print_line(f"{found.name}: {found.bits} bits, from {found.values:,} values")
    print_line("The error is the sum of its squares, in percent of the sum of the squares of all values.")
    terms = Table("term", "step", "mean size", "error that is left", "")
    examples = Table("value")
    for column in terms.columns[1:4]:
        column.justify = "right"
    for place, term in enumerate(found.terms):
        name = f"x_{term.bits}" if place == 0 else f"eps_{term.bits}"
        kept = "kept" if term.kept else "not kept"
        terms.add_row(name, f"{term.step:.4g}", f"{term.size:.4g}", format_percent(term.error), kept)
        examples.add_column(name if term.kept else f"({name})", justify="right")
    examples.add_column("result", justify="right")
    for place, value in enumerate(found.examples):
        parts = [term.examples[place] for term in found.terms]
        result = sum(part for part, term in zip(parts, found.terms, strict=True) if term.kept)
        examples.add_row(f"{value:.5g}", *(f"{part:+.4g}" for part in parts), f"{result:.5g}")
    console = output_console()
    console.print(terms)
    print_line("Some values, the smallest first; terms in parentheses are not kept:")
    console.print(examples)
