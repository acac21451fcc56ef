"""Tables on a terminal: nothing that names a row is cut, whatever the width."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests import calc
from tests.cli.conftest import Run
from tests.cli.test_attempts import kept as kept
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import output
from valve_plugin.tasks import task_set

WORDS = st.text(st.characters(categories=["Lu", "Ll", "Lo", "Nd"]), min_size=1, max_size=12)
COLUMNS = st.lists(WORDS, min_size=1, max_size=6, unique=True)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    header = draw(COLUMNS)
    cells = st.lists(WORDS, max_size=3).map(" ".join)
    return header, draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), max_size=4))


def printed(
    width: int, header: list[str], rows: list[list[str]], can_wait: Sequence[str] = (), prose: Sequence[str] = ()
) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    console.print(output._fitted(header, rows, width, can_wait, prose))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@given(tables(), st.integers(20, 90), st.data())
def test_every_line_fits_and_only_prose_is_cut(
    table: tuple[list[str], list[list[str]]], width: int, data: st.DataObject
) -> None:
    header, rows = table
    can_wait = [name for name in data.draw(st.lists(st.sampled_from(header), unique=True)) if name != header[0]]
    prose = data.draw(st.sets(st.sampled_from(header)))
    lines = printed(width, header, rows, can_wait, list(prose))
    assert all(cell_len(line) <= width for line in lines)
    if sum(max(map(cell_len, [name, *(row[n] for row in rows)])) + 2 for n, name in enumerate(header)) - 2 <= width:
        assert [line.split() for line in lines] == [header, *(" ".join(row).split() for row in rows)]


def test_what_a_narrow_one_gives_up_and_in_which_order() -> None:
    header, rows = ["ID", "TASK", "OUTCOME", "WHY"], [["0a1b2c3d", "t" * 40, "resolved", "w" * 40]]
    assert printed(110, header, rows, ["WHY"], ["TASK", "WHY"])[0].split() == header
    cut = printed(72, header, rows, ["WHY"], ["TASK", "WHY"])[1].split()
    assert [cut[0], cut[2]] == ["0a1b2c3d", "resolved"]
    assert all(cell.endswith("…") and len(cell) >= 20 for cell in (cut[1], cut[3]))
    assert printed(60, header, rows, ["WHY"], ["TASK", "WHY"])[1].split() == ["0a1b2c3d", "t" * 40, "resolved"]
    folded = printed(20, ["NAME", "N"], [["x" * 30, "1"]])[1:]
    assert "".join(folded).replace(" ", "").count("x") == 30


def _rows() -> list[dict[str, object]]:
    ids = ["acme__calc.c2540be6.func_pm_class_rm_funcs__4bdxnzek", "acme__calc.c2540be6.lm_rewrite__k2"]
    return [calc.row(instance_id=name, patch=calc.change(calc.OPS, calc.BUGGY + f"# {name}\n")) for name in ids]


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("command", ["attempts list --all", "tasks list acme/calc", "bank list"])
def test_tables_on_a_narrow_terminal(
    kept: BankStore, valve: Run, command: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calc.write(task_set.default_folder("acme/calc"), _rows())
    whole = valve(*command.split()).splitlines()
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    shown = [line.rstrip() for line in valve(*command.split()).splitlines()]
    assert all(cell_len(line) <= width for line in shown)
    assert len(shown) == len(whole)
    for line, row in zip(shown, whole, strict=True):
        assert line.startswith(row.split("\t")[0]), "what names the row is never cut"
