"""A table fits its terminal, and what a person copies from it is whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from tests.cli.banks import attempt
from tests.cli.conftest import Run
from tests.cli.test_stage import on_terminal
from valve_plugin.bank.store import BankStore
from valve_plugin.cli.columns import fit

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
    [line] = fit(["ID", "WHY"], [["0a1b2c3d", "word " * 60]], ["WHY"], width).lines
    assert width - 5 <= len(line) <= width
    assert line.endswith("…")


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_attempts_can_be_read_and_named_at_every_width(bank: BankStore, valve: Run, columns: int) -> None:
    reason = "2 of 4 required tests do not pass: tests/test_pages.py::test_the_last_page_is_not_empty failed"
    for number in range(3):
        one = attempt(number, "unresolved", "Pages are counted from zero, and the last one is empty")
        bank.local.add_attempt(replace(one, id=f"{number}a1b2c3d4e5f6071", recorded_at=1.7e9 + number, reason=reason))
    script = "import sys; sys.argv = ['valve', 'attempts', 'list']; from valve_plugin.__main__ import main; main()"
    head, *lines = [line for line in on_terminal(script, term="xterm", columns=columns) if not line.startswith("no ")]
    assert head.split()[:2] == ["ID", "WHEN"]
    assert [line.split()[0] for line in lines] == [f"{number}a1b2c3d4e5f6071" for number in (2, 1, 0)]
    assert all("  unresolved" in line and len(line) <= columns for line in lines)
    assert ("REASON" in head) == (columns > 80)
    assert "DROPPED" not in head
