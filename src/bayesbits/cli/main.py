"""`bayesbits`: all commands together, and the place where their errors become messages and exit codes."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import bayesbits
from bayesbits.cli.commands import COMMANDS
from bayesbits.cli.console import exit_code, print_error

_USAGE: tuple[Any, ...] = (typer.BadParameter.__base__, typer.Exit, typer.Abort)  # typer shows these itself

# Former names of options are accepted, and are not shown in the help.
_FORMER_NAMES = {
    "out": "output",
    "within": "budget",
    "examples": "num-examples",
    "inputs": "num-examples",
    "widths": "bits",
}


class Commands(TyperGroup):
    """The group of all commands; it catches their errors."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error is printed as one message, and ends the program with its exit code."""
        try:
            return super().invoke(ctx)
        except _USAGE:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if ctx.params.get("debug"):
                raise
            print_error(error)
            raise typer.Exit(exit_code(error)) from error


app = typer.Typer(
    name="bayesbits",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: _FORMER_NAMES.get(name, name),
    },
)
for command in COMMANDS:
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bayesbits {bayesbits.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Learn how many bits every tensor of a network deserves, and which channels it can do without.

    Start with: bayesbits demo
    """


def main() -> None:
    """The entry point of the command `bayesbits`."""
    app(prog_name="bayesbits")
