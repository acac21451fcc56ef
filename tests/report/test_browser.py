"""The page in a real Chromium: attacks stay text; keys, search, phone, print; and a thousand tasks open at once."""

from __future__ import annotations

import io
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.report.browser import check, figure_texts, metrics, opened, violations
from tests.report.runs import Maker
from tests.report.test_page import attacked
from tests.tools import need_module
from valve_plugin.evolve.trial import Means, Sides, TaskResult, TrialResult
from valve_plugin.records import Context
from valve_plugin.report.build import build_run
from valve_plugin.report.page import attempt_details, render_page
from valve_plugin.report.run import RunReport
from valve_plugin.report.trial import render_trial_page
from valve_plugin.theory.confidence_sequence import Interval, PairCounts

MOST_BOXES = 6_000
"""Laid out at first, of 80,000 elements: what is off the screen takes no time. It was 36,788 once, and seconds."""
A4 = 702
"""Width in pixels of what a sheet shows, between margins of 1.2 cm."""
LETTER = 11
"""Pixels that the text of a figure is high at least."""
MARK = "SIMULATION: a scripted model took part"
_STREAM, _GATES = "No. Task Attempts Bank version What came of it", "Gate Verdict"


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_an_attack_is_text(tmp_path: Path, data_dir: Path, browser: Any, scheme: str) -> None:
    path = tmp_path / "r.html"
    path.write_text(attacked(tmp_path / "bank"), encoding="utf-8")
    tab, said = opened(browser, path, color_scheme=scheme)
    assert said == []
    assert tab.title().startswith("VALVE report")
    assert violations(tab) == []
    tab.locator("#items summary").first.click()
    assert "onerror" in tab.locator("#items .body").first.inner_text()
    tab.locator("#items button[data-attempts]").first.click()
    assert "onload" in tab.locator("dialog[open]").inner_text()
    assert violations(tab) == []
    assert said == []


@pytest.mark.heavy
def test_in_a_browser_keys_search_and_phone(tmp_path: Path, data_dir: Path, browser: Any) -> None:
    maker = Maker(tmp_path / "bank", 4, panel_kept=True)
    maker.stream(20, 5)
    run = build_run(maker.store)
    path = tmp_path / "r.html"
    path.write_text(render_page([run], attempt_details([(run, maker.store.local)], 1_000_000)), encoding="utf-8")
    tab, said = opened(browser, path, viewport={"width": 360, "height": 740})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    for scroller in tab.locator("figure, .scroll:not(.heat)").all():
        assert scroller.evaluate("e => e.scrollWidth <= e.clientWidth"), scroller.get_attribute("aria-label")
    for link in tab.locator("td a, thead a").all():
        assert link.evaluate("e => Math.min(e.offsetWidth, e.offsetHeight) >= 24 || !e.offsetWidth")
    assert tab.locator("#gates tbody td").nth(1).get_attribute("data-label") == "Gain, points:"
    row = tab.locator(".heat tbody th").first
    row.evaluate("e => { e.querySelector('bdi').textContent = 'a long name '.repeat(9); }")
    cell, *names = [part.bounding_box() for part in (row, *row.locator("bdi").all())]
    assert names[0]["x"] >= cell["x"], "a long id is cut in its middle"
    assert all(name["x"] + name["width"] <= cell["x"] + cell["width"] for name in names)
    assert row.locator("bdi").last.evaluate("e => e.scrollWidth <= e.offsetWidth")
    assert tab.locator(".fold").count() == tab.locator(".fold:not([open]) > summary:visible").count(), "on a phone"
    mine = sum(i.version is not None for i in run.items)
    for event, items in (("beforeprint", mine), ("afterprint", 0)):
        tab.evaluate("name => { dispatchEvent(new Event(name)); }", event)
        assert tab.locator("#item-list [data-row][open]").count() == items, "those in the bank"
        assert bool(tab.locator(".fold:not([open])").count()) is (event == "afterprint")
        assert tab.locator("#ledger-list details[open]").count() == 0, "no raw line"
    bar = tab.locator("nav ul")
    assert bar.evaluate("e => e.scrollWidth <= e.clientWidth"), "all of the menu is seen"
    for name in ("Overview", "Panel", "Cost"):
        tab.locator("nav a", has_text=name).click()
        tab.evaluate("new Promise((done) => { requestAnimationFrame(() => setTimeout(done, 100)); })")
        assert bar.locator("[aria-current]").all_inner_texts() == [name]
    cells = tab.locator(".heat button")
    named = tab.get_by_role("button", name=re.compile(r"^panel_\d, Gate 1: [0-3] of [1-3] attempts? passed$"))
    first = next(c for c in run.columns if c.label == "Gate 1")
    assert named.count() == len(first.cells), "what a cell is called"
    cells.first.press("Enter")
    at_heading = "document.activeElement === document.querySelector('dialog h2')"
    settled = "y === scrollY ? done(y) : (y = scrollY, setTimeout(look, 300))"  # the focus may still scroll the page
    dialog = tab.locator("dialog[open]")
    before = tab.evaluate(f"new Promise((done) => {{ let y = NaN; const look = () => {settled}; look(); }})")
    assert tab.get_by_role("button", name="Previous").is_disabled()
    assert tab.evaluate(at_heading), "where Space presses nothing"
    for key in ("PageDown", "Space", "End"):
        dialog.evaluate("e => { e.scrollTop = 0; }")
        tab.keyboard.press(key)
        places = "[document.querySelector('dialog').scrollTop, scrollY]"
        inside, page_at = tab.evaluate(f"new Promise((done) => {{ setTimeout(() => done({places}), 300); }})")
        assert (inside > 0, page_at) == (True, before), f"{key} scrolls the dialog alone"
    titles = [tab.locator("dialog h2").inner_text()]
    for key in ("ArrowRight", "Shift+ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        tab.keyboard.press(key)
        titles.append(tab.locator("dialog h2").inner_text())
    one, two, same, three, *back = titles
    assert (len({one, two, three}), same, back) == (3, two, [two, one, one])
    assert tab.evaluate(at_heading)
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.activeElement === document.querySelector('.heat button')")
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.closest('tr').rowIndex") == 2
    for key, end in (("End", -1), ("Home", 0)):
        tab.keyboard.press(key)
        ends = f"[...document.activeElement.closest('tr').querySelectorAll('button')].at({end})"
        assert tab.evaluate(f"document.activeElement === {ends}"), key
    tab.keyboard.press("Enter")
    assert "1 of 3: attempt " in tab.locator("dialog[open]").inner_text()
    first = tab.locator("dialog h2").inner_text()
    tab.get_by_role("button", name="Previous").press("Enter")
    tab.get_by_role("button", name="Next").press("Enter")
    assert tab.locator("dialog h2").inner_text() == first
    tab.get_by_role("button", name="Next").press("Enter")
    later = tab.locator("dialog h2").inner_text()
    assert later != first
    told = tab.locator("dialog[open] section").first.inner_text()
    assert told.index("Patch") < told.index("Task") < told.index("Trajectory")
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.activeElement.ariaLabel") == later, "where it led to"
    tab.locator("#stream summary").click()
    tab.locator("#stream button[data-attempts]").first.click()
    told = tab.locator("dialog[open]")
    assert [h.inner_text()[:6] for h in told.locator("h3").all()] == ["1 of 3", "2 of 3", "3 of 3"]
    assert told.inner_text().count("Patch: the same as that of 1 of 3.") == 2
    assert [told.locator(kind).first.inner_text()[:4] for kind in (".added", ".removed")] == ["+new", "-old"]
    tab.keyboard.press("Escape")
    assert tab.locator("dialog[open]").count() == 0
    tab.locator("#ledger summary").first.click()
    tab.locator("#ledger input").fill("no such words")
    assert tab.locator("#ledger-list > details:visible").count() == 0
    for _ in range(2):
        tab.locator("#gates td.number a").first.click()
        tab.wait_for_function("document.querySelector(location.hash).getBoundingClientRect().top < innerHeight")
        line = tab.locator(f"#line-{run.gates[0].line}")
        assert line.get_attribute("open") is not None, "a link clears the filter that hides what it leads to"
        line.locator("summary").first.click()
    assert not tab.locator("#ledger input").input_value()
    assert tab.locator(".scroll").count() > tab.locator(".scroll[tabindex]").count(), "a tab stop where it scrolls"
    tab.locator("#items input").fill("no such words")
    assert tab.locator("#items output").inner_text().endswith(": nothing fits; try fewer or other words")
    tab.locator("#items input").fill("item-5-")
    assert tab.locator("#item-list [data-row]:visible").count() == 6, "five items, and what repeats one of them"
    tab.locator("#items select[name=kind]").select_option("skill")
    assert tab.locator("#items output").inner_text().startswith("4 of")
    item = tab.locator("#item-list [data-row]:visible").first
    item.locator("summary").first.click()
    item.locator("button[data-attempts]").first.click()
    assert "Trajectory" in tab.locator("dialog[open]").inner_text()
    tab.keyboard.press("Escape")
    assert said == []


@pytest.mark.heavy
@pytest.mark.parametrize("width", [1280, 801, 800, 360])
def test_in_a_browser_figures_can_be_read(tmp_path: Path, grown: Maker, browser: Any, width: int) -> None:
    grown.evaluate(0, 12)
    path = tmp_path / "r.html"
    path.write_text(render_page([build_run(grown.store)], {}), encoding="utf-8")
    tab, _ = opened(browser, path, viewport={"width": width, "height": 900})
    heights, cut = figure_texts(tab)
    assert len(heights) == 4
    assert min(heights) >= LETTER
    assert cut == []


@pytest.mark.heavy
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_a_trial_is_read_without_a_script(tmp_path: Path, browser: Any, width: int) -> None:
    means = Means(passed=1.0, steps=18.25, seconds=92.0, usd=None, tokens=None)
    result = TrialResult(
        answer="unclear", counts=PairCounts(1, 1, 1), interval=Interval(-0.5, 0.5), alike=Interval(-1, 1), tasks=1,
        planned=3, needed=None, without=means, with_text=means,
        by_task=(TaskResult(task_id="o__r.1.lm_rewrite__0123abcd", pairs=3, without=3, with_text=3),),
        course=((0, 0.0, -1.0, 1.0), (1, 1.0, -0.9, 1.0), (2, 0.0, -0.8, 0.8), (3, 0.0, -0.5, 0.5)),
    )  # fmt: skip
    sides = Sides(Context(text="old words"), Context(text="new words"))
    path = tmp_path / "trial.html"
    page = render_trial_page(result, "NEW.md", "OLD.md", sides, negligible=0.1, simulated=False)
    path.write_text(page, encoding="utf-8")
    tab = check(browser, path, viewport={"width": width, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    heights, cut = figure_texts(tab)
    assert [min(heights) >= LETTER, len(heights), cut] == [True, 1, []]
    said = tab.locator("figure text:visible").evaluate_all("all => all.map((one) => one.textContent)")
    assert [text for text in said if text in "0123"] == ["0", "0", "1", "2", "3"], "the middle, and every pair"
    assert tab.locator("pre:visible").all_inner_texts() == ["old words", "new words"]
    numbers = tab.locator("td").filter(has_text=re.compile(r"^(100\.0 %|unknown|92\.0)$"))
    assert numbers.count() == 8
    for cell in numbers.all():
        assert cell.evaluate("e => e.clientHeight < 3 * parseFloat(getComputedStyle(e).fontSize)"), "in one line"


@pytest.mark.heavy
def test_in_a_browser_a_thousand_tasks(tmp_path: Path, data_dir: Path, browser: Any) -> None:
    maker = Maker(tmp_path / "bank", 50)
    maker.stream(1000, 10)
    run = build_run(maker.store)
    assert (len(run.stream), len(run.gates)) == (1000, 100)
    assert len(run.items) >= 500
    path = tmp_path / "r.html"
    path.write_text(render_page([run], attempt_details([(run, maker.store.local)], 6_000_000)), encoding="utf-8")
    phone = browser.new_page(viewport={"width": 390, "height": 844})
    phone.goto(path.as_uri())
    assert metrics(phone)["LayoutObjects"] < MOST_BOXES
    _lead(phone)
    assert phone.evaluate("find('stream_999')"), "what is not drawn yet is found by searching the page"
    assert phone.locator("td.none").first.evaluate("e => e.ariaLabel") == "not evaluated"
    phone.close()
    check(browser, path)


def _lead(tab: Any) -> None:
    """From the middle and the end of the page links of the menu lead to their sections, and it marks these."""
    for start in (0.5, 1):
        for name in ("figures", "items", "stream", "trials"):
            link = tab.locator(f'nav a[href="#{name}"]')
            tab.evaluate("part => scrollTo(0, part * document.documentElement.scrollHeight)", start)
            link.click()
            tab.evaluate("new Promise((done) => { requestAnimationFrame(() => setTimeout(done, 120)); })")
            assert tab.locator("nav [aria-current]").all_inner_texts() == [link.inner_text()], start
            top, menu = (tab.locator(part).bounding_box() for part in (f"#{name}", "nav"))
            assert 0 <= menu["y"] < 100, "the menu stays in sight"
            seen = abs(menu["y"] + menu["height"] - top["y"]) <= 16
            assert seen or tab.evaluate("innerHeight + scrollY + 2 > document.documentElement.scrollHeight")
            assert top["y"] < 844


@pytest.mark.heavy
def test_on_paper_nothing_is_missing_or_torn(tmp_path: Path, data_dir: Path, browser: Any) -> None:
    maker = Maker(tmp_path / "bank", 8, seed=3, panel_kept=True)
    maker.stream(60, 10)
    run = replace(build_run(maker.store), simulated=True)
    path = tmp_path / "r.html"
    path.write_text(render_page([run], attempt_details([(run, maker.store.local)], 1_000_000)), encoding="utf-8")
    sheets = _printed(browser, path)
    assert 8 <= len(sheets) <= 30
    assert all(sheet[0] == MARK for sheet in sheets)
    assert all(len(sheet) > 4 for sheet in sheets), "no sheet for a last line alone"
    _complete(run, " ".join(line for sheet in sheets for line in sheet))
    heads = {"Overview", "Figures", "Gates", "Panel, task by task", "Notes", "Certificates", "Cost", "Stream", "Ledger"}
    for sheet in sheets:
        assert sheet[-1] not in heads, "a heading ends no sheet"
        assert not sheet[-1].startswith((_STREAM, _GATES)), "nor does the head of a table"
    continued = [" ".join(sheet) for sheet in sheets if sum(" of 3 passed" in line for line in sheet) > 2]
    assert len(continued) > 1
    assert all(_STREAM in sheet for sheet in continued), "a table that goes on has its head again"


def _complete(run: RunReport, told: str) -> None:
    for text in ("Is this bank better?", "Pass rate over the stream", "Assumptions", "Made by valve"):
        assert text in told
    assert all(re.search(rf"\bstream_{n}\b", told) for n in range(len(run.stream)))
    mine = [item.name for item in run.items if item.version is not None]
    assert mine
    assert all(name in told for name in mine)
    assert "1. Read callers" in told, "what is in the bank is open"
    assert "Skip to the overview" not in told


def _printed(browser: Any, path: Path) -> list[list[str]]:
    """Each sheet's lines; nothing may reach beyond its right edge."""
    need_module("pypdf")
    import pypdf

    tab, _ = opened(browser, path, viewport={"width": A4, "height": 1000})
    pdf = tab.pdf(format="A4")
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    wide = "[...document.querySelectorAll('table')].filter((t) => t.getBoundingClientRect().right > innerWidth + 1)"
    assert tab.evaluate(f"{wide}.map((t) => t.parentElement.ariaLabel)") == []
    texts = [sheet.extract_text() for sheet in pypdf.PdfReader(io.BytesIO(pdf)).pages]
    lines = [unicodedata.normalize("NFKC", text).splitlines() for text in texts]
    return [[line.strip() for line in sheet if line.strip()] for sheet in lines]
