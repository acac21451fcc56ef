"""Every `valve` command that a page shows exists, with the options it is shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from valve_plugin.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("README.md"))]
GENERATED = ROOT / "docs/reference/commands.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(valve [a-z][^`\n]*)`")


def shown() -> Iterator[tuple[str, str]]:
    """Yield (page, command line) of every `valve` command in a shell block or between backquotes."""
    for page in PAGES:
        if page == GENERATED:
            continue
        text = page.read_text("utf-8")
        lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
        for line in [*lines, *INLINE.findall(text)]:
            words = line.partition(" #")[0].strip().removeprefix("$ ")
            for part in re.split(r" && | \| |; ", words):
                if part.startswith("valve "):
                    yield page.relative_to(ROOT).as_posix(), part


COMMANDS = sorted(set(shown()))
ROOT_COMMAND = typer.main.get_command(app)


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}: {line}" for page, line in COMMANDS])
def test_a_command_that_is_shown_exists_with_its_options(page: str, line: str) -> None:
    command: Any = ROOT_COMMAND
    words = shlex.split(line.replace("...", "x").replace("…", "x"))[1:]
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        name = words.pop(0)
        names = {name} if name.isidentifier() or "-" in name else set(name.split("|"))
        assert names <= set(command.commands), f"there is no command {name!r}"
        command = command.commands[min(names)]
    if command.name == "mini":  # everything else is mini-SWE-agent's own
        return
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert asked - {"--help", "--install-completion", "--version"} <= known


def test_pages_show_commands() -> None:
    assert len(COMMANDS) > 60
