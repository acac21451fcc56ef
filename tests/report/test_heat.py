"""Cells of the panel's heatmap: what they show, and what they say to who cannot see them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import outcomes
from valve_plugin.records import Outcome
from valve_plugin.report.heat import HeatCell, _heat_cell
from valve_plugin.report.run import Cell, Column, Rollout


def cell(*ran: Outcome, late: tuple[Outcome, ...] = (), kept: bool = False) -> HeatCell:
    rollouts, more = (tuple(Rollout(ordinal=n, outcome=o) for n, o in enumerate(found)) for found in (ran, late))
    return _heat_cell(_COLUMN, Cell(task_id="t", rollouts=rollouts, late=more, kept=kept))


_COLUMN = Column(label="Gate 1", kind="gate", line=3, cells=())


@given(st.lists(outcomes, max_size=4), st.lists(outcomes, max_size=2), st.booleans())
def test_an_errored_rollout_is_in_no_denominator(ran: list[Outcome], late: list[Outcome], kept: bool) -> None:
    """It is neither a pass nor a failure, so text and name of a cell count it apart."""
    shown = cell(*ran, late=tuple(late), kept=kept)
    own, _, beyond = shown.text.partition("(")
    for text, found in ((own, ran), (beyond, late)):
        graded, lost = sum(o != "errored" for o in found), found.count("errored")
        assert sum(map(int, re.findall(r"/(\d+)", text))) == graded
        assert sum(map(int, re.findall(r"(\d+)!", text))) == lost
        assert not graded or f"{found.count('resolved')} of {graded} attempt" in shown.said
        assert not lost or f"{lost} errored" in shown.said
    assert ("lost" in shown.style) == ("errored" in ran)
    assert ("kept from before" in shown.said, "after the verdict" in shown.said) == (kept, bool(late))


def test_a_cell_says_what_it_means() -> None:
    for shown, text, said in (
        (cell("resolved", "unresolved", "errored"), "1/2 +1!", "1 of 2 attempts resolved, 1 errored"),
        (cell("errored", "errored"), "2!", "2 errored"),
        (cell("unresolved"), "0/1", "0 of 1 attempt resolved"),
        (cell(late=("resolved",)), "(1/1)", "1 of 1 attempt resolved after the verdict, not counted"),
        (_heat_cell(_COLUMN, None), "·", "not evaluated"),
    ):
        assert (shown.text, shown.said) == (text, said)
