"""Printing: text is data, errors are one line, exit codes are 0, 1, 2 and 3."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import Run
from tests.cli.test_tasks_mine import history  # noqa: F401  (a fixture)
from valve_plugin import errors
from valve_plugin.cli import output

HOSTILE = st.text(st.one_of(st.characters(), st.sampled_from("\x1b\x9b\x9d[]m;0123456789\x07\\\u202e\u200b\r")))


@given(HOSTILE)
def test_cleaned_text_cannot_steer_a_terminal(text: str) -> None:
    kept = output.clean(text)
    assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") for c in kept)
    assert output.clean(kept) == kept


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("a\x9b2Jb", "ab"),
        ("pay\u202edaer", "paydaer"),
        ("[red]not markup[/red] :boom:", "[red]not markup[/red] :boom:"),
        ("bell\x07 back\x08 return\r", "bell back return"),
    ],
)
def test_what_is_left_of_control_sequences(raw: str, seen: str) -> None:
    assert output.clean(raw) == seen


CODES = [
    (errors.ConfigError("rho is 2"), 2),
    (errors.BankCorruptError("ledger.jsonl: line 3"), 2),
    (errors.BankBusyError("held"), 3),
    (errors.SandboxError("no bwrap"), 3),
    (PermissionError(13, "Permission denied", "/x"), 3),
    (RuntimeError("a defect"), 3),
    (KeyboardInterrupt(), 130),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: type(value).__name__)
def test_what_is_raised_becomes_one_line_and_a_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stop, output.boundary():
        raise error
    printed = capsys.readouterr()
    assert stop.value.exit_code == code
    assert printed.out == ""
    assert printed.err.startswith("valve: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err


def test_a_table_in_a_pipe_is_tab_separated_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["A", "B"], [("x" * 500, "tab\there"), (1, "[b]")])
    assert capsys.readouterr().out == f"A\tB\n{'x' * 500}\ttab here\n1\t[b]\n"


def test_a_table_on_a_terminal_takes_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    output.table(["NAME"], [("[red]x[/red]\x1b[31m",)])
    assert "[red]x[/red]" in capsys.readouterr().out


NOWHERE = "/proc/nowhere/here"


@pytest.mark.parametrize("command", [["demo", "--fast", "--out"], ["tasks", "mine", "--unsafe-local", "--out"]])
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="nowhere nothing can be made, also by root")
def test_a_folder_that_cannot_be_made(history: Path, valve: Run, command: list[str]) -> None:  # noqa: F811
    valve(*command, NOWHERE, code=2)
    line = valve.err.splitlines()[-1]
    assert line == f"valve: --out {NOWHERE}: No such file or directory; name a place that can be written to"
    (history / "file").write_text("")
    valve(*command, "file/x", code=2)
    assert "file" in valve.err.splitlines()[-1]
    assert "Errno" not in valve.err


def test_a_bank_that_cannot_be_made(project: Path, valve: Run) -> None:
    valve("init", "--bank", NOWHERE, code=2)
    assert "nothing can be made there: choose another place with --bank" in valve.err
