"""Pipes get UTF-8 whatever encoding the locale or the environment names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli import banks
from tests.cli.conftest import Run
from valve_plugin.bank.store import BankStore

WORD = "café 日本 “é”"
LOCALES = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
]
COMMANDS = [
    *(["context", f"about {WORD}"], ["bank", "show", "look-first"], ["bank", "list"], ["report", "--out", "-"], []),
    *(["bank", "log"], ["bank", "lint"], ["bank", "diff", "0", "1"], ["attempts", "list"], ["bank", "verify"]),
]


@pytest.fixture
def accented(project: Path, monkeypatch: pytest.MonkeyPatch) -> BankStore:
    """The sample bank, with an item that is not ASCII."""
    item = replace(banks.PRINCIPLE, text=f"About {WORD}", markdown=f"# {WORD}\n\n{WORD} is on the menu.\n")
    monkeypatch.setattr(banks, "GOOD", replace(banks.GOOD, items=(item, banks.SKILL)))
    return banks.sample(project / ".valve")


def test_every_command_writes_utf_8(accented: BankStore) -> None:
    """One locale after the other, as text and as data."""
    seen = 0
    for turn, command in enumerate(COMMANDS):
        machine = turn % 2 == 1
        typed = [*command, *(["--json"] if machine else [])]
        environment = os.environ | LOCALES[turn % len(LOCALES)]
        done = subprocess.run(
            [sys.executable, "-m", "valve_plugin", *typed], env=environment, capture_output=True, check=False
        )
        text = done.stdout.decode("utf-8", "strict")
        assert "caf?" not in text + done.stderr.decode("utf-8", "strict"), command
        if machine and text:
            seen += WORD in json.dumps(json.loads(text), ensure_ascii=False).replace('\\"', '"')
        else:
            seen += WORD in text
    assert seen >= 2


def test_a_task_is_the_same_text_in_every_locale(project: Path, valve: Run) -> None:
    valve("init")
    for name, text, when in (
        ("clamp", "Always run the naïve check.", "naïve"),
        ("other", "Read clamp first.", "release"),
    ):
        (project / f"{name}.md").write_text(text)
        valve("bank", "add", f"{name}.md", "--name", name, "--when", when, "--unjudged", "--reason", "by hand")
    command = [sys.executable, "-m", "valve_plugin", "context", "it looks naïve", "--json"]
    chosen = [
        json.loads(subprocess.run(command, env=os.environ | locale, capture_output=True, check=True).stdout)["items"]
        for locale in ({"LC_ALL": "C.UTF-8"}, LOCALES[-1])
    ]
    assert chosen == [[{"kind": "skill", "name": "clamp"}]] * 2
