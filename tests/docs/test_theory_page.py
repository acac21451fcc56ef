"""What docs/explanation/statistics.md says a command printed is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from valve_plugin.cli import app

PAGE = (Path(__file__).parents[2] / "docs/explanation/statistics.md").read_text("utf-8")
BLOCKS = re.findall(r"```text\n\$ valve ([^\n]+)\n(.*?)\n```", PAGE, flags=re.DOTALL)
NUMBERS = [(command, shown) for command, shown in BLOCKS if "--" in command]  # the others are of a real bank


@pytest.mark.parametrize(("command", "shown"), NUMBERS, ids=[command for command, _ in NUMBERS])
def test_the_page_shows_what_is_printed(
    command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    printed, shown = " ".join(result.stdout.split()), " ".join(shown.split())
    if shown.endswith(" ..."):
        assert printed.startswith(shown.removesuffix(" ..."))
    else:
        assert printed == shown


def test_the_page_answers_with_commands() -> None:
    assert {command.split()[0] for command, _ in BLOCKS} == {"plan", "certify"}
    assert len(NUMBERS) >= 5
