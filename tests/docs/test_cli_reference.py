"""A command or option that nothing documents fails here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.docs.cli_reference import TARGET, commands, reference
from valve_plugin.cli import MODULES, SECTIONS, build

COMMANDS = list(commands())
NAMES = [name for name, _, _ in COMMANDS]
LEAVES = [(name, command, text) for name, command, text in COMMANDS if not hasattr(command, "commands")]
README = Path(__file__).parents[2] / "README.md"


def test_the_reference_is_what_the_commands_say() -> None:
    assert TARGET.read_text("utf-8") == reference(), "run `make docs` and look at what changed"


@pytest.mark.parametrize(("name", "command", "text"), COMMANDS, ids=NAMES)
def test_help_teaches(name: str, command: Any, text: str) -> None:
    assert command.help, f"{name} has no help"
    assert "Examples:" in text, f"{name} shows no example: epilog=examples(...)"
    _, _, shown = text.partition("Examples:")
    assert name in shown, f"the examples of {name} do not use it"
    wide = [line for line in text.splitlines() if len(line) > 112]
    assert not wide, f"{name}: wider than a terminal: {wide}"


@pytest.mark.parametrize(("name", "command", "text"), COMMANDS, ids=NAMES)
def test_every_option_says_what_it_does(name: str, command: Any, text: str) -> None:
    for param in command.params:
        assert getattr(param, "help", None), f"{name}: {param.name} has no help"


@pytest.mark.parametrize(("name", "command", "text"), COMMANDS[1:], ids=NAMES[1:])
def test_the_first_sentence_fits_the_list_of_commands(name: str, command: Any, text: str) -> None:
    short = command.get_short_help_str(70)
    assert not short.endswith("..."), f"{name}: {short!r} is cut; begin with a shorter sentence"


@pytest.mark.parametrize(("name", "command", "text"), LEAVES, ids=[name for name, _, _ in LEAVES])
def test_commands_that_print_take_json(name: str, command: Any, text: str) -> None:
    if name in ("valve mini", "valve attempts record", "valve mcp"):  # mini's output; none; a protocol
        return
    assert any("--json" in param.opts for param in command.params), f"{name} has no --json"


def test_a_command_that_is_made_alone_is_the_same() -> None:
    """`valve NAME` makes no other, so the module has the command's name."""
    modules = {name for names in SECTIONS.values() for name in names} - {"status"}
    commands = {name.removeprefix("valve ") for name in NAMES if name.count(" ") == 1}
    assert modules == {MODULES.get(name, name) for name in commands}
    for name in ("init", "panel", "try"):
        alone = CliRunner().invoke(build(name), [name, "--help"], prog_name="valve")
        assert alone.stdout == CliRunner().invoke(build(), [name, "--help"], prog_name="valve").stdout != ""


def test_every_top_level_command_is_in_the_readme_and_in_a_section() -> None:
    text = README.read_text("utf-8")
    for name, command, _ in COMMANDS[1:]:
        if name.count(" ") == 1:
            assert f"`{name}" in text, f"README does not name {name}"
            assert command.rich_help_panel in SECTIONS, f"{name} is in no section of `valve --help`"
