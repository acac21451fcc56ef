"""`valve mini`: mini-SWE-agent's own command with `--plugin valve`, without the start-up file."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand

from valve_plugin import _boot
from valve_plugin.cli.options import Commands

RUNNER = "minisweagent.run.mini"


class Untouched(TyperCommand):
    """A command that reads none of its arguments, not even --help: all are mini's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep every argument, in order."""
        ctx.args = list(args)
        return args


commands = Commands()


@commands.add(
    "mini",
    "valve mini -t 'Fix the failing import'                # as `mini --plugin valve` with the start-up file",
    "VALVE_STARTUP=0 valve mini -c valve.check='python -m pytest tests/test_x.py' -t '...'",
    cls=Untouched,
    add_help_option=False,
)
def mini(ctx: typer.Context) -> None:
    """Run `mini` with this plugin, without the start-up file.

    Every argument is mini-SWE-agent's own, --help included.
    """
    run(ctx.args)


def run(args: list[str]) -> None:
    """Run `mini --plugin valve ARGS` in this process; ends in SystemExit, as mini does."""
    sys.argv = ["mini", "--plugin", "valve", *args]  # where the start-up guard, if it is on too, looks as well
    _boot.install()
    runner = importlib.import_module(RUNNER)
    _boot.extend(runner)  # does nothing unless the module was imported earlier
    try:
        runner.app(sys.argv[1:], prog_name="valve mini")
    except Exception:  # noqa: BLE001 - whatever ends mini, it shows as it does there and is no error of `valve`
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
