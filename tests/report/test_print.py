"""The page on paper: Chromium prints it to PDF, which is read back."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.report.browser import chromium, opened
from tests.report.runs import Maker
from tests.tools import need_module
from valve_plugin.cli.history import words
from valve_plugin.report.details import attempts
from valve_plugin.report.facts import run_facts
from valve_plugin.report.page import page
from valve_plugin.report.run import Run

A4 = 702
"""Width in pixels of what a sheet shows, between margins of 1.2 cm."""
MARK = "SIMULATION: a scripted model took part"
_STREAM, _GATES = "No. Task Attempts Bank version What came of it", "Gate Verdict"


@pytest.mark.heavy
@pytest.mark.usefixtures("drawn")
def test_on_paper_nothing_is_missing_or_torn(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 8, seed=3, panel_kept=True)
    maker.stream(60, 10)
    run = replace(run_facts(maker.store, words), simulated=True)
    path = tmp_path / "r.html"
    path.write_text(page([run], attempts([(run, maker.store.local)], 1_000_000)), encoding="utf-8")
    sheets = _printed(path)
    assert 8 <= len(sheets) <= 30
    assert all(sheet[0] == MARK for sheet in sheets)
    assert all(len(sheet) > 4 for sheet in sheets), "no sheet for a last line alone"
    _complete(run, " ".join(line for sheet in sheets for line in sheet))
    heads = {"Overview", "Figures", "Gates", "Panel, task by task", "Items", "Certificates", "Cost", "Stream", "Ledger"}
    for sheet in sheets:
        assert sheet[-1] not in heads, "a heading ends no sheet"
        assert not sheet[-1].startswith((_STREAM, _GATES)), "nor does the head of a table"
    continued = [" ".join(sheet) for sheet in sheets if sum(" of 3 resolved" in line for line in sheet) > 2]
    assert len(continued) > 1
    assert all(_STREAM in sheet for sheet in continued), "a table that goes on has its head again"


def _complete(run: Run, told: str) -> None:
    for text in ("Is this bank better?", "Resolved rate over the stream", "What all of this rests on", "Made by valve"):
        assert text in told
    assert all(f"gate {gate.number}" in told for gate in run.gates)
    assert all(f"stream_{n} " in told for n in range(len(run.stream)))
    mine = [item.name for item in run.items if item.version is not None]
    assert mine
    assert all(name in told for name in mine)
    assert "1. Read callers" in told, "what is in the bank is open"
    assert "Skip to the overview" not in told


def _printed(path: Path) -> list[list[str]]:
    """Each sheet's lines; nothing may reach beyond its right edge."""
    need_module("pypdf")
    import pypdf

    with chromium() as browser:
        tab, _ = opened(browser, path, viewport={"width": A4, "height": 1000})
        pdf = tab.pdf(format="A4")
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        wide = "[...document.querySelectorAll('table')].filter((t) => t.getBoundingClientRect().right > innerWidth + 1)"
        assert tab.evaluate(f"{wide}.map((t) => t.parentElement.ariaLabel)") == []
    texts = [sheet.extract_text() for sheet in pypdf.PdfReader(io.BytesIO(pdf)).pages]
    lines = [unicodedata.normalize("NFKC", text).splitlines() for text in texts]
    return [[line.strip() for line in sheet if line.strip()] for sheet in lines]
