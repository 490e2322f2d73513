"""`bayesbits`: all commands together."""

from typing import Annotated

import typer

import bayesbits
from bayesbits.cli.demo import demo
from bayesbits.cli.deployed import bench, export, verify
from bayesbits.cli.errors import Commands
from bayesbits.cli.inspect import inspect
from bayesbits.cli.plan import plan
from bayesbits.cli.posttrain import posttrain
from bayesbits.cli.recipes import recipes
from bayesbits.cli.report import report
from bayesbits.cli.search import search
from bayesbits.cli.sensitivity import sensitivity

app = typer.Typer(
    name="bayesbits",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, recipes, inspect, search, plan, report, posttrain, sensitivity, export, verify, bench):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bayesbits {bayesbits.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Learn how many bits every tensor of a network deserves, and which channels it can do without.

    Start with: bayesbits demo
    """


def main() -> None:
    """What the command `bayesbits` calls."""
    app(prog_name="bayesbits")
