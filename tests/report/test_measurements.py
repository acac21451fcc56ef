"""Cells of the heatmap, and tasks on which one measurement is above another."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.report.parsed import page
from tests.report.runs import Maker
from tests.strategies import outcomes
from valve_plugin.records import Outcome
from valve_plugin.report.build import build_run
from valve_plugin.report.findings import HeatCell, heat_cell, heatmap, holdout_signs
from valve_plugin.report.run import PanelCell, Rollout, RunReport


def cell(*ran: Outcome, kept: bool = False) -> HeatCell:
    rollouts = tuple(Rollout(ordinal=n, outcome=o) for n, o in enumerate(ran))
    return heat_cell("Gate 1", PanelCell(task_id="t", rollouts=rollouts, kept=kept))


@given(st.lists(outcomes, min_size=1, max_size=4), st.booleans())
def test_an_errored_rollout_is_in_no_denominator(ran: list[Outcome], kept: bool) -> None:
    shown = cell(*ran, kept=kept)
    graded, lost = sum(o != "errored" for o in ran), ran.count("errored")
    assert sum(map(int, re.findall(r"/(\d+)", shown.ran.text))) == graded
    assert sum(map(int, re.findall(r"(\d+)!", shown.ran.text))) == lost
    assert shown.ran == (ran.count("resolved"), graded, lost)
    assert ("lost" in shown.style.split(), "kept" in shown.style.split()) == (bool(lost), kept)


def test_a_cell_shows_passes_of_those_graded() -> None:
    for shown, text, style in (
        (cell("resolved", "unresolved", "errored"), "1/2 +1!", "lost"),
        (cell("errored", "errored"), "2!", "lost"),
        (cell("unresolved"), "0/1", "zero"),
        (cell("resolved", "unresolved"), "1/2", "part"),
        (cell("resolved", kept=True), "1/1", "full kept"),
        (heat_cell("Gate 1", None), "·", "none"),
    ):
        assert (shown.ran.text, shown.style) == (text, style)


def test_every_cell_has_a_name_that_says_what_it_means(long: RunReport) -> None:
    seen = page([long])
    cells = [c for row in heatmap(long.columns).values() for c in row]
    named = [n for n in seen.all("aria-label") if re.fullmatch(r"panel_\d, .*: [0-3] of [1-3] attempts? passed", n)]
    assert len(named) == sum(bool(c.attempts) for c in cells)
    assert seen.all("aria-label", "td").count("not evaluated") == sum(c.style == "none" for c in cells)


def test_the_holdout_is_told_task_by_task(grown: Maker) -> None:
    grown.evaluate(0, 12)
    assert holdout_signs(build_run(grown.store)) is None, "one version alone"
    grown.evaluate(grown.store.bank.version, 15)
    run = build_run(grown.store)
    assert [(c.label, c.passes, c.rollouts) for c in run.evaluations] == [
        ("Version 0", 12, 30),
        (f"Version {run.version}", 15, 30),
    ]
    assert holdout_signs(run) == (1, 0, 9)
    assert len(heatmap(run.evaluations)) == 10
    assert [n for n in page([run]).all("aria-label") if n.startswith("Holdout outcomes")]
