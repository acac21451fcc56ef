"""A page of 1,000 tasks, 100 gates and 600 items in a real browser: it opens at once, and one finds one's way in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import check, chromium, metrics
from tests.report.runs import Maker
from valve_plugin.cli.history import words
from valve_plugin.report.details import attempts
from valve_plugin.report.facts import run_facts
from valve_plugin.report.page import page

MOST_BOXES = 6_000
"""Laid out at first, of 80,000 elements: what is off the screen takes no time. It was 36,788 once, and seconds."""


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.mark.heavy
def test_in_a_browser_a_thousand_tasks(tmp_path: Path, data_dir: Path, browser: Any) -> None:
    maker = Maker(tmp_path / "bank", 50)
    maker.stream(1000, 10)
    run = run_facts(maker.store, words)
    assert (len(run.stream), len(run.gates)) == (1000, 100)
    assert len(run.items) >= 500
    path = tmp_path / "r.html"
    path.write_text(page([run], attempts([(run, maker.store.local)], 6_000_000)), encoding="utf-8")
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
        for name in ("figures", "items", "stream", "live"):
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
