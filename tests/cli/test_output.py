"""What commands print, how tables fit a terminal, and how commands fail."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from tests.cli.banks import attempt
from tests.cli.conftest import Run
from tests.cli.test_stage import on_terminal
from tests.cli.test_tasks_mine import history  # noqa: F401  (a fixture)
from valve_plugin import errors
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import output
from valve_plugin.cli.output import fit

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


WORDS = st.text(st.sampled_from("abcdefgh/_.漢"), min_size=1, max_size=90)
SENTENCES = st.lists(WORDS, max_size=12).map(" ".join)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]], set[str]]:
    kinds = draw(st.lists(st.sampled_from(["fixed", "prose", "empty"]), min_size=1, max_size=8))
    header = [f"{kind.upper()} {number}" for number, kind in enumerate(kinds)]
    cells = {"fixed": st.one_of(WORDS, st.just("")), "prose": SENTENCES, "empty": st.just("")}
    rows = draw(st.lists(st.tuples(*(cells[kind] for kind in kinds)).map(list), max_size=5))
    return header, rows, {name for name in header if name.startswith("PROSE")}


@given(tables(), st.integers(1, 200))
def test_what_is_no_free_text_is_whole_and_lines_fit(
    table: tuple[list[str], list[list[str]], set[str]], width: int
) -> None:
    header, rows, prose = table
    found = fit(header, rows, prose, width)
    fixed = [n for n, name in enumerate(header) if name not in prose]
    for row in rows:
        assert {row[n] for n in fixed} - {""} <= {cell for line in found.lines for cell in line.split()}
    whole = {row[n] for row in [header, *rows] for n in fixed}
    narrow = max((cell_len(text) for text in whole), default=0) + 2 <= width
    for line in [*found.heads, *found.lines]:
        assert cell_len(line) <= width or line in whole or not narrow
    empty = {name for n, name in enumerate(header) if rows and not any(row[n] for row in rows)}
    shown = "  ".join(found.heads)
    assert not any(name in shown for name in empty)
    assert set(found.hidden) <= prose - empty


@given(tables())
def test_nothing_is_cut_where_there_is_room(table: tuple[list[str], list[list[str]], set[str]]) -> None:
    header, rows, prose = table
    found = fit(header, rows, prose, 100_000)
    assert len(found.lines) == (len(rows) if any(map(any, rows)) else 0)
    assert not found.hidden
    assert not any("…" in line for line in found.lines)


@given(st.integers(40, 120))
def test_free_text_takes_what_is_left(width: int) -> None:
    [line] = fit(["ID", "TASK"], [["0a1b2c3d", "word " * 60]], ["TASK"], width).lines
    assert width - 5 <= len(line) <= width
    assert line.endswith("…")


@given(SENTENCES, st.integers(40, 120))
def test_no_word_of_a_reason_is_lost(reason: str, width: int) -> None:
    lines = fit(["ID", "WHY"], [["0a1b2c3d", reason]], ["WHY"], width).lines
    assert "".join(lines).replace(" ", "") == f"0a1b2c3d{reason}".replace(" ", "")
    assert all(cell_len(line) <= width for line in lines)


@given(st.sampled_from(["", "failed   model    ", "    7  "]), SENTENCES, st.integers(40, 120))
def test_a_long_line_is_broken_at_words_below_its_text(label: str, text: str, width: int) -> None:
    lines = output.fold(f"{label}x {text}", width).split("\n")
    assert "".join(lines).replace(" ", "") == f"{label}x{text}".replace(" ", "")
    below = " " * (len(label) or 2)
    assert all(line.startswith(below) and line[len(below) : len(below) + 1] != " " for line in lines[1:])
    assert all(cell_len(line) <= width or " " not in line.strip() for line in lines[1:])


def test_a_command_is_never_broken() -> None:
    command = f"`valve bank list --bank {'long/' * 20}` shows them"
    assert command.split("`")[1] in output.fold(f"no note fits this task at all, whatever one may think; {command}", 60)
    starts = ("next       valve", "         $", "next       /bin/valve", "next: /bin/valve", "  /x/mini")
    for alone in (f"{start} {'word ' * 30}" for start in starts):
        assert output.fold(alone, 60) == alone


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_attempts_can_be_read_and_named_at_every_width(bank: BankStore, valve: Run, columns: int) -> None:
    reason = "2 of 4 required tests do not pass: tests/test_pages.py::test_the_last_page_is_not_empty failed"
    for number in range(3):
        one = attempt(number, "unresolved", "Pages are counted from zero, and the last one is empty")
        bank.local.add_attempt(replace(one, id=f"{number}a1b2c3d4e5f6071", recorded_at=1.7e9 + number, reason=reason))
    script = "import sys; sys.argv = ['valve', 'attempts', 'list']; from valve_plugin.__main__ import main; main()"
    head, *lines = [line for line in on_terminal(script, term="xterm", columns=columns) if not line.startswith("no ")]
    assert head.split()[:2] == ["ID", "WHEN"]
    lines = [line for line in lines if not line.startswith(" ")]  # the others go on with a reason
    assert [line.split()[0] for line in lines] == [f"{number}a1b2c3d4e5f6071" for number in (2, 1, 0)]
    assert all("  unresolved" in line and len(line) <= columns for line in lines)
    assert ("REASON" in head) == (columns > 80)
    assert "RESTORED" not in head
