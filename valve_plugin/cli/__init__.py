"""The `valve` command: one thin function per subcommand, one file per command or a few that belong together.

A command module is named after a command of it (others are in `MODULES`) and has `commands`, or a function
`register(app)`. It imports heavy modules inside its functions, because `valve --help` imports every command module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from valve_plugin.extras import ignore_dotenv, missing_package


@contextmanager
def _packages() -> Iterator[None]:
    """Stop with one line, and code 3, where a package is not installed."""
    try:
        yield
    except ModuleNotFoundError as e:
        if not (line := missing_package(e)):
            raise
        sys.stderr.write(f"valve: {line}\n")
        sys.exit(3)


with _packages():
    import typer
    from typer.core import TyperGroup

    from valve_plugin.cli import output

# Sections of `valve --help` in reading order, each with the modules whose commands it shows.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start here": ("status", "init", "doctor", "demo", "trial"),
    "Run and learn": ("mini", "evolve", "gate", "panel"),
    "Make tasks": ("tasks",),
    "Use the bank": ("attempts", "bank", "clean", "connect"),
    "Trust it": ("report", "eval", "certify", "plan"),
    "Research": ("experiment",),
}

MODULES = {
    "try": "trial",
    "split": "tasks",
    "extract": "attempts",
    "relink": "clean",
    "context": "connect",
    "mcp": "connect",
}
"""Modules of commands that no module is named after."""


class Group(TyperGroup):
    """The root group: one error boundary around every command, and commands listed by section."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command inside the error boundary."""
        with output.boundary():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the headings of SECTIONS."""
        for section in SECTIONS:
            commands: list[Any] = [c for c in self.commands.values() if not c.hidden]
            listed = [c for c in commands if c.rich_help_panel == section]
            if listed:
                listed.sort(key=lambda c: (SECTIONS[section].index(MODULES.get(c.name, c.name)), c.name in MODULES))
                with formatter.section(section):
                    formatter.write_dl([(c.name, c.get_short_help_str(limit=70)) for c in listed])


def build(word: str = "") -> typer.Typer:
    """Return the application; if `word` is a command, with only that one, which starts faster."""
    word = MODULES.get(word, word)
    alone = {"status", word} if any(word in modules for modules in SECTIONS.values()) else set()
    app = typer.Typer(
        name="valve",
        cls=Group,
        # Help is plain text: the same everywhere, and drawn without importing Rich.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for section, modules in SECTIONS.items():
        commands, groups = len(app.registered_commands), len(app.registered_groups)
        for name in modules if not alone else set(modules) & alone:
            module = importlib.import_module(f"valve_plugin.cli.{name}")
            if hasattr(module, "register"):
                module.register(app)
            elif module.commands.info.name in module.__name__.split("."):
                app.add_typer(module.commands)
            else:
                app.registered_commands += module.commands.registered_commands
        for command in app.registered_commands[commands:]:
            command.rich_help_panel = section
        for group in app.registered_groups[groups:]:
            group.rich_help_panel = section
    return app


def __getattr__(name: str) -> typer.Typer:
    """Return `app`, the application with every command, made on first use."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _packages():
        app = globals()["app"] = build()
    return app


def main() -> None:
    """Entry point of the console script."""
    ignore_dotenv()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that lacks a character still gets the line; programs get UTF-8, whatever the locale says.
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    with _packages():
        app = build(sys.argv[1] if len(sys.argv) > 1 else "")
    try:
        app(prog_name="valve")
    finally:
        # Flush stdout before the interpreter ends, which would complain about a closed pipe
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            output.silence()
            sys.exit(output.BROKEN_PIPE)
