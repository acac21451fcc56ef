"""Fits a table to the width of a terminal. Pure.

Only free text is cut. Ids, outcomes, numbers and paths are always whole, so that they can be copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

GAP = "  "
LEAST = 20
"""Width below which a column of free text says too little; where there are several, the last is then left out."""


class Fitted(NamedTuple):
    """A table as the lines of a terminal."""

    heads: list[str]
    """The header."""
    lines: list[str]
    hidden: list[str]
    """Names of the columns that found no room."""


def fit(header: Sequence[str], rows: Sequence[Sequence[str]], prose: Collection[str], width: int) -> Fitted:
    """Return the lines of a table.

    Columns without a cell are left out. Columns of free text share the room that the others leave, the first ones
    before the last ones. Where the others alone are too wide, the widest of them gets a line of its own in each row,
    which the terminal may wrap.

    Args:
        header: names of the columns.
        rows: as many cells each, without line ends.
        prose: names of columns of free text.
        width: of the terminal, in cells.
    """
    shown = [n for n in range(len(header)) if not rows or any(row[n] for row in rows)]
    widths = {n: max(map(_width, [header[n], *(row[n] for row in rows)])) for n in shown}
    text = [n for n in shown if header[n] in prose]
    least = {n: widths[n] if n not in text else min(widths[n], max(LEAST, _width(header[n]))) for n in shown}
    above: list[int] = []
    hidden: list[int] = []

    def spare() -> int:
        columns = [n for n in shown if n not in (*above, *hidden)]
        return width - sum(least[n] for n in columns) - len(GAP) * (len(columns) - 1) - len(GAP) * bool(above)

    while spare() < 0 and len(text) > 1:
        hidden.append(text.pop())
    while spare() < 0 and (rest := [n for n in shown if n not in (*above, *hidden, *text)]):
        above.append(max(rest, key=lambda n: widths[n]))
    if spare() < 0:
        hidden += text
        text = []
    _share(least, widths, text, max(0, spare()))
    columns = [n for n in shown if n not in (*above, *hidden)]
    lines = [_lines(row, sorted(above), columns, least) for row in [header, *rows]]
    return Fitted(lines[0], [line for row in lines[1:] for line in row], [header[n] for n in sorted(hidden)])


def _share(got: dict[int, int], wanted: dict[int, int], text: Sequence[int], room: int) -> None:
    """Give columns of free text the room that is left: evenly, and none more than its longest cell."""
    waiting = sorted(text, key=lambda n: wanted[n] - got[n])
    for number, n in enumerate(waiting):
        more = min(wanted[n] - got[n], room // (len(waiting) - number))
        got[n] += more
        room -= more


def _lines(row: Sequence[str], above: Sequence[int], columns: Sequence[int], widths: dict[int, int]) -> list[str]:
    cells = [_cell(row[n], widths[n]) for n in columns]
    line = GAP * bool(above) + GAP.join(cells)
    return [*(row[n] for n in above), *[line.rstrip()] * bool(columns)]


def _cell(text: str, width: int) -> str:
    """Return a text cut or filled to a width."""
    if _width(text) > width:
        while _width(text) > width - 1:
            text = text[:-1]
        text = f"{text.rstrip()}…"
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Return the cells that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
