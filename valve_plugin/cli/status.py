"""`valve` alone: where this repository stands, and the next command to run."""

from __future__ import annotations

from typing import Annotated

import typer

from valve_plugin import __version__
from valve_plugin.cli.options import examples


def register(app: typer.Typer) -> None:
    """Make this what `valve` does without a command."""
    app.callback(invoke_without_command=True, epilog=_EXAMPLES)(root)


_EXAMPLES = examples("valve  # where this repository stands")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"valve {__version__}")
        raise typer.Exit


def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Keep skills for one repository only when paired, executable rollouts show a gain."""
