"""The command reference, made from the commands themselves: `make docs` writes it, a test compares it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from valve_plugin.cli import app

TARGET = Path(__file__).parents[2] / "docs/reference/commands.md"
WIDTH = 100

_HEAD = """\
# Commands

What `--help` prints, for every command. This page is made from the commands by `make docs`.

Every command that prints takes `--json`. Exit codes: 0 ok, 1 a negative finding, 2 wrong use, 3 infrastructure,
130 interrupted by Ctrl-C. Errors are one line on stderr; `VALVE_DEBUG=1` adds the traceback. Results go to stdout;
tables are tab-separated when stdout is not a terminal.
"""


def commands() -> Iterator[tuple[str, Any, str]]:
    """Yield (full name, command, help text) for every visible command, parents first."""
    root = typer.main.get_command(app)
    yield from _walk("valve", root, None)


def reference() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for name, _, text in commands():
        parts.append(f"## {name}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def _walk(name: str, command: Any, parent: Any) -> Iterator[tuple[str, Any, str]]:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.context_class(command, info_name=name.rpartition(" ")[2], parent=parent, **settings)
    lines = command.get_help(context).splitlines()
    yield name, command, "\n".join(line.rstrip() for line in lines)
    for child in getattr(command, "commands", {}).values():
        if not child.hidden:
            yield from _walk(f"{name} {child.name}", child, context)


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
