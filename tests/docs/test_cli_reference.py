"""A command or option that nothing documents fails here."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from tests.docs.cli_reference import TARGET, commands, reference
from valve_plugin.cli import MODULES, SECTIONS, build

COMMANDS = list(commands())
NAMES = [name for name, _, _ in COMMANDS]


def test_the_reference_is_what_the_commands_say() -> None:
    assert TARGET.read_text("utf-8") == reference(), "run `make docs` and look at what changed"


@pytest.mark.parametrize(("name", "command", "text"), COMMANDS, ids=NAMES)
def test_help_teaches(name: str, command: Any, text: str) -> None:
    assert command.help, f"{name} has no help"
    assert name in text.partition("Examples:")[2], f"{name} shows no example of its own: epilog=examples(...)"
    wide = [line for line in text.splitlines() if len(line) > 112]
    assert not wide, f"{name}: wider than a terminal: {wide}"
    for param in command.params:
        assert getattr(param, "help", None), f"{name}: {param.name} has no help"
    short = command.get_short_help_str(70)
    assert name == "valve" or not short.endswith("..."), f"{name}: {short!r} is cut; begin with a shorter sentence"
    silent = ("valve mini", "valve attempts record", "valve mcp")  # mini's output; none; a protocol
    if not hasattr(command, "commands") and name not in silent:
        assert any("--json" in param.opts for param in command.params), f"{name} has no --json"


def test_a_command_that_is_made_alone_is_the_same() -> None:
    """`valve NAME` makes no other, so the module has the command's name."""
    modules = {name for names in SECTIONS.values() for name in names} - {"status"}
    commands = {name.removeprefix("valve ") for name in NAMES if name.count(" ") == 1}
    assert modules == {MODULES.get(name, name) for name in commands}
    for name in ("init", "panel", "try"):
        alone = CliRunner().invoke(build(name), [name, "--help"], prog_name="valve")
        assert alone.stdout == CliRunner().invoke(build(), [name, "--help"], prog_name="valve").stdout != ""


def test_every_top_level_command_is_in_a_section() -> None:
    for name, command, _ in COMMANDS[1:]:
        if name.count(" ") == 1:
            assert command.rich_help_panel in SECTIONS, f"{name} is in no section of `valve --help`"
