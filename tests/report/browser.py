"""Pages in a real Chromium: what they say and ask for, what axe-core finds, and what opening them takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tools import need, need_module, unit

MOST_UNITS = 200
"""Of CPU in the page's own process until it is loaded: wall-clock time on a shared machine says little."""

_ONE_OF_EACH = """() => {
  const seen = new Set(), kind = (row) => JSON.stringify([row.dataset, [...row.querySelectorAll('[class]')].map((e) =>
    e.getAttribute('class')).filter((c, i, all) => all.indexOf(c) === i)]);
  for (const list of document.querySelectorAll('tbody, #item-list, #item-list > .fold, #ledger-list')) {
    const rows = [...list.children];
    rows.forEach((row, i) => {
      const known = seen.has(kind(row));
      seen.add(kind(row));
      if (known && i >= 10 && i < rows.length - 3) row.remove();
    });
  }
}"""
"""Leaves the first and last rows of every list, and one of each kind: axe takes a minute for 36,000 elements."""


_DRAWN = """() => [...document.querySelectorAll('figure svg')].filter((s) => s.checkVisibility()).map((s) => {
  const box = s.getBoundingClientRect(), texts = [...s.querySelectorAll('text')];
  const cut = texts.filter((t) => { const b = t.getBoundingClientRect();
    return b.left < box.left || b.right > box.right || b.top < box.top || b.bottom > box.bottom; });
  const heights = texts.map((t) => s.getScreenCTM().a * parseFloat(getComputedStyle(t).fontSize));
  return [Math.min(...heights), cut.map((t) => t.textContent)];
})"""


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser; a missing one skips the test, or fails it where all tests have to run."""
    need_module("playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        # Without Chromium's own sandbox: it refuses root, and the pages are ours.
        browser = p.chromium.launch(executable_path=need("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    """Open a page; return it with all it said or asked for, but for itself."""
    tab = browser.new_page(**options)
    tab.set_default_timeout(120_000)
    said: list[str] = []
    tab.on("console", lambda m: said.append(f"{m.type}: {m.text}"))
    tab.on("pageerror", lambda e: said.append(f"error: {e}"))
    tab.on("request", lambda r: said.append(r.url) if r.url != path.as_uri() else None)
    tab.goto(path.as_uri())
    return tab, said


def figure_texts(tab: Any) -> tuple[list[float], list[str]]:
    """Return, of the figures that can be seen, the height of the smallest text of each in pixels, and what is cut."""
    drawn = tab.evaluate(_DRAWN)
    return [height for height, _ in drawn], [text for _, cut in drawn for text in cut]


def metrics(tab: Any) -> dict[str, float]:
    """Return what Chromium measured of a page: `ProcessTime`, CPU seconds of its own process, and counts of boxes."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")
    return {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}


def violations(tab: Any, *, one_of_each: bool = False) -> list[str]:
    """Return what axe-core finds wrong with a page; of long lists it can be shown one row of each kind."""
    from axe_playwright_python.sync_playwright import Axe

    tab.evaluate(
        "for (const part of document.querySelectorAll('main > section')) part.style.contentVisibility = 'visible'"
    )
    if one_of_each:
        tab.evaluate(_ONE_OF_EACH)
    found = Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]
    return [f"{v['id']}: {v['help']}: {[n['target'] for n in v['nodes'][:3]]}" for v in found]


def check(browser: Any, path: Path, **options: Any) -> Any:
    """Open a page that must say nothing, ask for nothing, open in time and have no fault that axe-core finds."""
    tab, said = opened(browser, path, **options)
    spent = metrics(tab)["ProcessTime"]
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, loaded with {spent:.2f} s of the page's CPU time")
    assert spent < MOST_UNITS * unit()
    assert violations(tab, one_of_each=True) == []
    assert said == []
    return tab
