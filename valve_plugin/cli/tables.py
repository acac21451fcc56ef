"""How a table fits a terminal: what a narrow one does without, and what it puts below. Pure.

A column is either whole or not there, so that an id can be copied; only prose is cut. Where it is too narrow, headers
break at spaces and prose is cut; then the columns that can wait go, in their order; then each row takes several lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

_GAP, _INDENT, _PROSE = 2, 2, 20
"""Cells between columns; by how much the further lines of a row are indented; what is left of prose at least."""


class Column(NamedTuple):
    """One column's header and cells, and whether they may be cut."""

    name: str
    cells: tuple[str, ...]
    prose: bool = False

    @property
    def whole(self) -> int:
        """Width of the widest cell."""
        return max(map(_width, self.cells), default=0)

    @property
    def least(self) -> int:
        """Width that the column needs."""
        cells = min(self.whole, _PROSE) if self.prose else self.whole
        return max(cells, *map(_width, self.name.split(" ")))


def laid_out(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    can_wait: Iterable[str] = (),
    prose: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Return the lines of the header and of the rows, none wider than `width`.

    Args:
        width: of the terminal, in cells.
        can_wait: names of columns that a narrow terminal does without, the first to go first.
        prose: names of columns whose cells may be cut.
    """
    columns = [Column(name, tuple(row[n] for row in rows), name in prose) for n, name in enumerate(header)]
    tiers = _tiers(_shown(columns, width, list(can_wait)), width)
    spans = [_widths(tier, width - _INDENT * (n > 0)) for n, tier in enumerate(tiers)]
    head: list[str] = []
    body: list[str] = []
    for n, (tier, widths) in enumerate(zip(tiers, spans, strict=True)):
        named = [_broken(c.name, w) for c, w in zip(tier, widths, strict=True)]
        head += _lines(named, widths, _INDENT * (n > 0))
    for row in range(len(rows)):
        for n, (tier, widths) in enumerate(zip(tiers, spans, strict=True)):
            cells = [_fitted(c, row, w) for c, w in zip(tier, widths, strict=True)]
            body += _lines(cells, widths, _INDENT * (n > 0))
    return head, body


def _shown(columns: Sequence[Column], width: int, can_wait: Sequence[str]) -> list[Column]:
    """Return the columns that stay: where a row takes several lines anyway, those too that take no further one."""
    gone: set[str] = set()
    for name in can_wait:
        if _needs([c for c in columns if c.name not in gone]) <= width:
            break
        gone.add(name)
    lines = len(_tiers([c for c in columns if c.name not in gone], width))
    for name in reversed(can_wait) if lines > 1 else ():
        if len(_tiers([c for c in columns if c.name not in gone - {name}], width)) <= lines:
            gone.discard(name)
    return [c for c in columns if c.name not in gone]


def _needs(columns: Sequence[Column]) -> int:
    return sum(column.least for column in columns) + _GAP * (len(columns) - 1)


def _tiers(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Return the columns of each line of a row, in order: as many as fit, at least one."""
    tiers: list[list[Column]] = [[]]
    for column in columns:
        room = width - _INDENT * (len(tiers) > 1)
        if tiers[-1] and _needs([*tiers[-1], column]) > room:
            tiers.append([])
        tiers[-1].append(column)
    return tiers


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return how wide each column is: what it needs, and of what is left, in order, what prose and headers can use."""
    widths = [min(column.least, width) for column in columns]
    spare = width - sum(widths) - _GAP * (len(columns) - 1)
    for n, column in enumerate(columns):
        if 0 < (more := _width(column.name) - widths[n]) <= spare:
            widths[n], spare = widths[n] + more, spare - more
    for n, column in enumerate(columns):
        more = max(0, min(spare, column.whole - widths[n]))
        widths[n], spare = widths[n] + more, spare - more
    return widths


def _fitted(column: Column, row: int, width: int) -> list[str]:
    """Return the lines of a cell: prose is cut to one, what is wider than the terminal is broken."""
    from rich.cells import set_cell_size

    cell = column.cells[row]
    if _width(cell) <= width:
        return [cell]
    return [f"{set_cell_size(cell, width - 1).rstrip()}…"] if column.prose else _broken(cell, width)


def _broken(text: str, width: int) -> list[str]:
    from rich.cells import chop_cells

    lines = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    return [piece for line in lines for piece in (chop_cells(line, width) if _width(line) > width else [line])]


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int], indent: int) -> list[str]:
    """Return cells of one or more lines beside each other."""
    from rich.cells import set_cell_size

    made = []
    for n in range(max(map(len, cells))):
        shown = [set_cell_size(cell[n] if n < len(cell) else "", w) for cell, w in zip(cells, widths, strict=True)]
        made.append(" " * indent + (" " * _GAP).join(shown).rstrip())
    return made


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
