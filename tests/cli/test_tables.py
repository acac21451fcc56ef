"""Tables on a terminal: nothing that names a row is cut, whatever the width."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from tests.cli.conftest import Run
from tests.cli.test_attempts import kept as kept
from tests.rollouts import calc
from valve_plugin.bank.evaluated import Interval
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import eval_items, output
from valve_plugin.cli.tables import laid_out
from valve_plugin.report.items import Effect, Worth
from valve_plugin.tasks import folder

GOLDEN = Path(__file__).parent / "golden" / "tables"
WORDS = st.text(st.characters(categories=["Lu", "Ll", "Lo", "Nd"]), min_size=1, max_size=12)
COLUMNS = st.lists(WORDS, min_size=1, max_size=6, unique=True)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    header = draw(COLUMNS)
    cells = st.lists(WORDS, max_size=3).map(" ".join)
    return header, draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), max_size=4))


@given(tables(), st.integers(20, 90), st.data())
def test_every_line_fits_and_only_prose_is_cut(
    table: tuple[list[str], list[list[str]]], width: int, data: st.DataObject
) -> None:
    header, rows = table
    can_wait = data.draw(st.lists(st.sampled_from(header), unique=True)) if len(header) > 1 else []
    can_wait = [name for name in can_wait if name != header[0]]
    prose = data.draw(st.sets(st.sampled_from(header)))
    head, body = laid_out(header, rows, width, can_wait, prose)
    assert all(cell_len(line) <= width for line in [*head, *body])
    seen = "".join("".join(body).split())
    for n, name in enumerate(header):
        if name not in prose and name not in can_wait:
            assert all(set("".join(row[n].split())) <= set(seen) for row in rows)
    if sum(max(map(cell_len, [name, *(row[n] for row in rows)])) + 2 for n, name in enumerate(header)) - 2 <= width:
        assert len(head) == 1, "what fits is one line a row, with every column"
        assert head[0].split() == header
        assert [line.split() for line in body] == [" ".join(row).split() for row in rows]


def test_what_a_narrow_one_gives_up_and_in_which_order() -> None:
    header, rows = ["ID", "TASK", "OUTCOME", "WHY"], [["0a1b2c3d", "t" * 40, "resolved", "w" * 40]]
    assert laid_out(header, rows, 110, ["WHY"], ["TASK", "WHY"])[0] == [f"ID        TASK{' ' * 38}OUTCOME   WHY"]
    assert laid_out(header, rows, 72, ["WHY"], ["TASK", "WHY"])[1] == [f"0a1b2c3d  {'t' * 29}…  resolved  {'w' * 19}…"]
    assert laid_out(header, rows, 60, ["WHY"], ["TASK", "WHY"])[1] == [f"0a1b2c3d  {'t' * 40}  resolved"]
    assert laid_out(["NAME", "N"], [["x" * 30, "1"]], 30) == (["NAME", "  N"], ["x" * 30, "  1"])
    assert laid_out(["NAME"], [["x" * 30]], 20)[1] == ["x" * 20, "x" * 10]
    assert laid_out(["ROLLOUTS OF 9", "N"], [["1", "2"]], 12)[0] == ["ROLLOUTS  N", "OF 9"]


def _rows() -> list[dict[str, object]]:
    ids = ["acme__calc.c2540be6.func_pm_class_rm_funcs__4bdxnzek", "acme__calc.c2540be6.lm_rewrite__k2"]
    return [calc.row(instance_id=name, patch=calc.change(calc.OPS, calc.BUGGY + f"# {name}\n")) for name in ids]


COMMANDS = {
    "attempts-list": "attempts list",
    "attempts-list-all": "attempts list --all",
    "tasks-list-all": "tasks list --all",
    "tasks-list": "tasks list acme/calc",
    "bank-list": "bank list",
    "bank-log": "bank log",
    "plan": "plan --variance 0.025 --horizon 60 --anchor 0.0583",
}


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("name", COMMANDS)
def test_tables_on_a_narrow_terminal(
    kept: BankStore,
    valve: Run,
    name: str,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calc.write(folder.default("acme/calc"), _rows())
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    shown = valve(*COMMANDS[name].split()).replace(str(folder.default("acme/calc")), "TASKS")
    if name == "plan":  # the rest are sentences, which a terminal breaks
        shown = "".join(f"{part}\n" for part in shown.split("\n\n") if part.startswith(("TRUE EFFECT", "TOLERANCE")))
    assert all(cell_len(line) <= width for line in shown.splitlines())
    golden(f"{name}-{width}", shown)


@pytest.mark.parametrize("width", [80, 60])
def test_items_on_a_narrow_terminal(
    kept: BankStore, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["search_for_names_that_are_read_and_never_bound", "dates"]
    rows = [
        Worth(replace(item, name=name), Effect(33.8, -5.0, 72.5), 12, True, (Interval(Fraction(1), Fraction(1)),))
        for item, name in zip(kept.bank.items, names, strict=True)
    ]
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    eval_items._print(rows, {rows[0].item.key: "code_semantics"}, {"code_semantics": (1, rows[0].effect)}, "LOSS")
    golden(f"panel-items-{width}", capsys.readouterr().out)


def golden(name: str, shown: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, "utf-8")
    assert shown == path.read_text("utf-8")


def test_a_real_terminal_sets_the_width(kept: BankStore) -> None:
    """What `stty cols 60` says, with nothing in the environment."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [str(Path(sys.executable).with_name("valve")), "attempts", "list"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        raw = b""
        while piece := _read(ours):
            raw += piece
    os.close(ours)
    assert process.returncode == 0
    assert output.clean(raw.decode()) == (GOLDEN / "attempts-list-60.txt").read_text("utf-8")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other side is closed
        return b""
