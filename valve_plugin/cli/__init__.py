"""The `valve` command: one thin function per subcommand, one file per command.

A command module exposes `register(app)`, is named as its command is, and imports what is heavy inside its functions:
`valve --help` imports all of them, and what they need is imported with any.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from valve_plugin.cli.missing import needed
from valve_plugin.reading import leave_dotenv

with needed():
    import typer
    from typer.core import TyperGroup

    from valve_plugin.cli import output

# Sections of `valve --help` in reading order, each with the modules whose commands it shows.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start here": ("status", "init", "doctor", "demo"),
    "Run and learn": ("mini", "evolve", "gate", "panel"),
    "Make tasks": ("tasks", "split"),
    "Use the bank": ("attempts", "bank", "context"),
    "Trust it": ("report", "eval", "certify", "plan"),
    "Research": ("experiment",),
}


class Group(TyperGroup):
    """The root group: one error boundary around every command, and commands listed by section."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command inside the error boundary."""
        with output.boundary():
            if not set(ctx.help_option_names) & set(ctx.args):
                _require_here()
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; for a word that is another's command, or none at all, say what does it."""
        if args and not args[0].startswith("-") and (ways := self._elsewhere(args[0])):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {ways}?")
        return super().resolve_command(ctx, args)

    def _elsewhere(self, word: str) -> str:
        """Return what somebody may mean by a word that is no command; empty: one is nearer, or nothing is near."""
        from difflib import get_close_matches

        ways: dict[str, list[str]] = {"status": ["valve"], "help": ["valve --help"], "version": ["valve --version"]}
        for name, group in self.commands.items():
            for command in getattr(group, "commands", {}):
                ways.setdefault(command, []).append(f"valve {name} {command}")
        near = get_close_matches(word, [*self.commands, *ways], n=1)
        return " or ".join(f"`{way}`" for way in ways[near[0]]) if near and near[0] not in self.commands else ""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the headings of SECTIONS."""
        for section in SECTIONS:
            listed = [c for c in self.commands.values() if _section(c) == section and not c.hidden]
            if listed:
                with formatter.section(section):
                    formatter.write_dl([(c.name, c.get_short_help_str(limit=70)) for c in listed])


def _require_here() -> None:
    """Refuse to start in a directory that somebody removed: nothing can be found from there.

    Raises:
        ConfigError: it is gone.
    """
    from valve_plugin.errors import ConfigError

    try:
        os.getcwd()
    except OSError as e:
        gone = os.environ.get("PWD", "the current directory")
        raise ConfigError(f"{gone} is gone: it was removed after this shell went there; `cd` to one that exists") from e


def _section(command: Any) -> str:
    return str(command.rich_help_panel)


def build(word: str = "") -> typer.Typer:
    """Return the application; where `word` is a command, with that one alone: all together take a quarter second."""
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
            importlib.import_module(f"valve_plugin.cli.{name}").register(app)
        for command in app.registered_commands[commands:]:
            command.rich_help_panel = section
        for group in app.registered_groups[groups:]:
            group.rich_help_panel = section
    return app


def __getattr__(name: str) -> typer.Typer:
    """`app`, the application with every command: made when it is asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed():
        app = globals()["app"] = build()
    return app


def main() -> None:
    """Entry point of the console script."""
    leave_dotenv()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character still gets the line
    with needed():
        app = build(sys.argv[1] if len(sys.argv) > 1 else "")
    try:
        app(prog_name="valve")
    finally:
        _flush()


def _flush() -> None:
    """Find out here, not while the interpreter ends, that nobody reads any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        output.silence()
        sys.exit(output.BROKEN_PIPE)
