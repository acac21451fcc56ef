"""The page: inert whatever a bank says, whole, and structured; parsed as a browser would."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli import banks
from tests.cli.banks import sample
from tests.report.parsed import ATTACK, Seen, page, visible, whole_page
from tests.report.runs import Maker
from valve_plugin.bank.store import BankStore
from valve_plugin.evidence.cost import RoleCost
from valve_plugin.report.build import build_run
from valve_plugin.report.figures import figures
from valve_plugin.report.page import render_page
from valve_plugin.report.run import RunReport


def attacked(path: Path) -> str:
    """Return the page of a bank in which every text is an attack."""
    maker = Maker(path, 3, text=ATTACK.replace("\x00", ""))
    maker.stream(12, 4)
    return whole_page(maker.store)


def test_text_from_outside_is_never_markup(tmp_path: Path, data_dir: Path) -> None:
    html = attacked(tmp_path / "bank")
    seen = Seen(html)
    tags = [tag for tag, _ in seen.tags]
    assert (tags.count("script"), tags.count("style")) == (2, 1)
    assert not {"img", "iframe", "object", "embed", "base", "video", "audio"} & set(tags)
    for tag, attributes in seen.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "xlink:href", "src", "action"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:,")), (tag, target)
    kept = json.loads(seen.scripts[0])
    assert len(kept) == 36
    assert all("document.title='taken'" in a["patch"] for a in kept.values()), "whole, as data"
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src &#39;none&#39;" in policy
    assert "script-src &#39;sha256-" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_a_page_has_all_sections_and_every_link_leads_somewhere(long: RunReport) -> None:
    seen = page([long])
    links = [link.removeprefix("#") for link in seen.all("href") if link.startswith("#")]
    ids = seen.all("id")
    assert set(links) <= set(ids)
    assert len(set(ids)) == len(ids)
    sections = ["overview", "figures", "gates", "panel", "items", "certificates", "cost", "stream", "trials", "ledger"]
    assert seen.all("id", "section") == sections
    assert seen.all("data-answer") == ["better", "gain", "certainty", "cost"]
    rows = [row for row in seen.all("data-type") if row == "judged"]
    assert len(rows) == len(long.gates)
    assert ids.count("attempt") == 1


def test_a_long_run_is_cut_to_its_latest_and_nothing_is_counted_less(
    long: RunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = replace(long.ledger[2], problem="changed by hand")
    run = replace(long, ledger=(*long.ledger[:2], fault, *long.ledger[3:]))
    whole = render_page([run], {})
    for name, most in {"ROWS": 6, "ITEMS": 4, "COLUMNS": 5, "_DATA": 9_000}.items():
        monkeypatch.setattr(f"valve_plugin.report.page.{name}", most)
    monkeypatch.setattr("valve_plugin.report.figures._LATEST", 7)
    html = render_page([run], {})

    def told(page: str) -> list[list[str]]:
        """Return what is told of the whole run: the answers, sums, shelves and receipts."""
        kinds = (r"<dl class=\"cards\">.*?</dl>", r"<tfoot>.*?</tfoot>", r"<summary>Not in the bank.*?</summary>")
        return [re.findall(kind, page, re.DOTALL) for kind in (*kinds, r"Receipts: .*?</p>", r"role=\"alert\".*?</p>")]

    assert told(html) == told(whole)
    assert all(told(html)[:4])
    seen = Seen(html)
    assert {link[1:] for link in seen.all("href") if link.startswith("#")} <= set(seen.all("id"))
    lines = [int(id_.removeprefix("line-")) for id_ in seen.all("id") if id_.startswith("line-")]
    assert lines == [3, *range(len(run.ledger) - 5, len(run.ledger) + 1)], "what is wrong is never cut"
    kept, items = ({id_ for id_ in page.all("id") if re.match(r"item-\d", id_)} for page in (seen, Seen(whole)))
    assert (kept < items, len(kept)) == (True, 8)
    assert 0 < html.count("<pre>") < 7
    for shown, of, what in (
        (6, len(run.gates), "gates"), (5, len(run.columns), "measurements"), (6, len(run.stream), "tasks"),
        (7, len(run.ledger), "lines"), (7, len(run.gates), "gates."),
    ):  # fmt: skip
        assert f"The latest {shown} of {of} {what}" in html
    assert not re.search(r"The latest \d", whole)


def test_a_fault_is_shown_before_all_that_it_puts_in_doubt(tmp_path: Path, data_dir: Path) -> None:
    store = sample(tmp_path / "bank")
    (tmp_path / "bank/bank.json").write_text("{}")
    run = build_run(store)
    assert any(problem.startswith("bank.json") for problem in run.problems)
    html = render_page([run], {})
    assert html.index('role="alert"') < html.index('class="cards"')
    both = render_page([replace(run, label="A, x"), replace(run, label="B, y", problems=())], {})
    assert both.count('role="alert"') == 1
    assert both.index('role="alert"') < both.index('class="cards versus"')


def test_an_empty_bank_has_a_page(tmp_path: Path, data_dir: Path) -> None:
    run = build_run(BankStore.create(tmp_path / "bank", "owner/name"))
    assert figures([run]) == []
    seen = page([run])
    assert seen.all("data-state")[:4] == ["empty", "unmeasured", "no_accept", "nothing"]
    assert not [tag for tag, _ in seen.tags if tag == "figure"]


@pytest.mark.parametrize("scripted_alone", [True, False])
def test_a_simulation_says_so_and_in_which_run(small: RunReport, scripted_alone: bool) -> None:
    ran = (RoleCost(role="solver", rollouts=3, usd=0.0, hours=0.1),)
    real = replace(small, label="A, real", spent=ran)
    models = ("script",) if scripted_alone else ("script", "other")
    scripted = replace(real, label="B, scripted", simulated=True, models=models)
    sentence = "commands, edits, tests and grading were real"
    for runs, where in (
        ([scripted], "this run"),
        ([scripted, scripted], "both runs"),
        ([real, scripted], "B, scripted, and not in the other run"),
    ):
        html = render_page(runs, {})
        (label,) = re.findall(r'<aside class="simulation"[^>]*>([^<]*)</aside>', html)
        assert label.startswith("SIMULATION")
        assert f"in {where}" in label
        assert (sentence in label) is scripted_alone, "another model took part"
        assert 'class="simulated ' in html, "what print marks"
    captions = {f.name: f.caption for f in figures([real, scripted])}
    assert captions["stream"].startswith("SIMULATION in B, scripted: ")
    assert captions["gates-2"].startswith("SIMULATION: ")
    alone = render_page([real], {})
    assert "SIMULATION" not in captions["gates-1"] + visible(alone)
    assert 'class="simulated ' not in alone


def test_what_hides_a_text_is_shown_as_code_points(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = replace(banks.PRINCIPLE, text="pay \u202edaer", markdown="run\u200b it \U000e0041 \x1b[8m gone")
    monkeypatch.setattr(banks, "GOOD", replace(banks.GOOD, items=(item, banks.SKILL)))
    html = render_page([build_run(sample(tmp_path / "b"))], {})
    assert all(f"[{point}]" in html for point in ("U+202E", "U+200B", "U+E0041", "U+001B"))
    assert not any(c in html for c in "\u202e\u200b\U000e0041\x1b")
    assert "\\u202e" not in html
