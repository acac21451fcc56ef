"""The `valve` command: one thin function per subcommand, one file per command."""

from __future__ import annotations

import typer

app = typer.Typer(name="valve", no_args_is_help=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


def main() -> None:
    """Entry point of the console script."""
    app()
