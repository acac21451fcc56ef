"""A page as a parser sees it: start tags, what scripts hold, and visible text by element."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from valve_plugin.bank.store import BankStore
from valve_plugin.report.build import build_run
from valve_plugin.report.page import attempt_details, render_page
from valve_plugin.report.run import RunReport

ATTACK = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    "{{ 7*7 }}{% raw %}&lt;b&gt;]]><!--'\"`<svg/onload=document.title='taken'>[go](javascript:alert(1))"
    "![x](https://example.org/x.png)<https://example.org> $\\frac{1}{2}$ \u2028\u202e\x00\x1b[31m<style>*{display:none}"
)


class Seen(HTMLParser):
    """Every start tag with its attributes, and what scripts hold."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data

    def all(self, attribute: str, tag: str = "") -> list[str]:
        """Return the attribute's value of every element, or every such element, that has it."""
        return [str(a[attribute]) for t, a in self.tags if attribute in a and tag in ("", t)]


def page(runs: Sequence[RunReport], attempts: dict[str, Any] | None = None) -> Seen:
    """Return the page of these runs, parsed."""
    return Seen(render_page(runs, attempts or {}))


def whole_page(store: BankStore) -> str:
    """Return a bank's page with the attempts kept here."""
    run = build_run(store)
    return render_page([run], attempt_details([(run, store.local)], 1_000_000))


def visible(html: str) -> str:
    """Return a page's text."""
    return re.sub(r"<style>.*?</style>|<script.*?</script>|<pre>.*?</pre>|<[^>]*>", " ", html, flags=re.DOTALL)
