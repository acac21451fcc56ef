"""The page is inert whatever a bank says: parsed as a browser would, and, where one is at hand, opened in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from typer.testing import CliRunner

from tests.cli.banks import sample
from tests.experiment.test_tables import ROWS
from tests.report.browser import chromium, opened, violations
from tests.report.runs import Maker
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.cli.history import words
from valve_plugin.cli.report import _labels
from valve_plugin.cli.targets import folder, table
from valve_plugin.errors import ConfigError
from valve_plugin.experiment.tables import OWN, comma_separated, markdown
from valve_plugin.report.details import attempts
from valve_plugin.report.facts import run_facts
from valve_plugin.report.overview import signed
from valve_plugin.report.page import page
from valve_plugin.report.texts import breaks, inert, sentences, ticked

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


def attacked(path: Path) -> str:
    maker = Maker(path, 3, text=ATTACK.replace("\x00", ""))
    maker.stream(12, 4)
    run = run_facts(maker.store, words)
    return page([run], attempts([(run, maker.store.local)], 1_000_000))


def test_text_from_outside_is_never_markup(tmp_path: Path, data_dir: Path) -> None:
    seen = Seen(attacked(tmp_path / "bank"))
    tags = [tag for tag, _ in seen.tags]
    assert tags.count("script") == 2
    assert tags.count("style") == 1
    assert not {"img", "iframe", "object", "embed", "base", "video", "audio"} & set(tags)
    for tag, attributes in seen.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "xlink:href", "src", "action"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:,")), (tag, target)


def test_attempts_are_data_and_whole(tmp_path: Path, data_dir: Path) -> None:
    seen = Seen(attacked(tmp_path / "bank"))
    kept = json.loads(seen.scripts[0])
    assert len(kept) == 36
    assert all("document.title='taken'" in a["patch"] for a in kept.values())


def test_a_policy_names_the_one_script(tmp_path: Path, data_dir: Path) -> None:
    html = attacked(tmp_path / "bank")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src &#39;none&#39;" in policy
    assert "script-src &#39;sha256-" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


@given(st.text() | st.text(alphabet="<>[]()!`*_#-|&\n ahref:"))
def test_markdown_is_inert(text: str) -> None:
    for tag, attributes in Seen(str(inert(text))).tags:
        assert tag in _MARKDOWN_TAGS
        assert set(attributes) <= {"class", "start", "style"}
        assert not (style := attributes.get("style")) or re.fullmatch(r"text-align:(left|right|center)", style)


_MARKDOWN_TAGS = {
    *(
        "p",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "em",
        "strong",
        "code",
        "pre",
        "ul",
        "ol",
        "li",
        "blockquote",
        "hr",
        "br",
    ),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


def test_the_page_explains_margin_pairing_and_sums(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 3)
    maker.stream(12, 4)
    maker.fail(maker.store.bank.repo + ".task", 2)
    run = run_facts(maker.store, words)
    html = page([run], {})
    ran, of = sum(g.ran for g in run.gates), sum(g.total for g in run.gates)
    assert f"{ran} of {of}" in html
    assert "the least gain on the panel that is accepted, \u03c1 = 0.02" in html
    assert "retrieval finds in the current bank, and everything that is proposed" in html
    assert "2 errored" in html
    assert (signed(0.0), signed(-0.0001), signed(0.042), signed(-0.1)) == ("0.0", "0.0", "+4.2", "-10.0")
    assert [p.errored for p in run.stream if not p.graded] == [2]
    assert "+And once more." in html, "a near-duplicate's difference to what it repeats"


@given(st.text() | st.text(alphabet="`<>&ab"))
def test_our_own_words_stay_text(text: str) -> None:
    seen = Seen(str(ticked(text)))
    assert {tag for tag, _ in seen.tags} <= {"code"}
    assert str(ticked("see `valve plan`")) == "see <code>valve plan</code>"
    assert str(ticked("one ` only")) == "one ` only"


@given(st.text() | st.text(alphabet="_<>&a"))
def test_names_may_break_after_underscores_and_stay_text(text: str) -> None:
    html = str(breaks(text))
    assert {tag for tag, _ in Seen(html).tags} <= {"wbr"}
    assert html.count("<wbr>") == len(re.findall("_+", text))
    assert html.replace("<wbr>", "") == str(escape(text))


@given(st.text() | st.text(alphabet="SIMULATION.: A"))
def test_a_caption_is_cut_behind_its_first_sentence(text: str) -> None:
    assert " ".join(filter(None, sentences(text))) == text
    told = "SIMULATION: a script. Drawn at 1.5 points. More. Still more."
    assert sentences(told) == ("SIMULATION: a script. Drawn at 1.5 points.", "More. Still more.")


def test_room_for_attempts_is_kept(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 3)
    maker.stream(12, 4)
    run = run_facts(maker.store, words)
    none = attempts([(run, maker.store.local)], 0)
    assert len(none) == 36
    assert not any("patch" in a for a in none.values())
    some = attempts([(run, maker.store.local)], 1000)
    learned = {r.attempt for item in run.items for r in item.sources}
    assert {id_ for id_, a in some.items() if "patch" in a} <= learned


def valve(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "valve_plugin", *args], capture_output=True, text=True, timeout=120)


@pytest.mark.usefixtures("drawn")
def test_the_command_writes_page_and_figures(tmp_path: Path, data_dir: Path) -> None:
    sample(tmp_path / "bank")
    done = valve(
        "report", "--bank", str(tmp_path / "bank"), "--out", str(tmp_path / "r.html"), "--figures", str(tmp_path / "f")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'r.html'}\n"
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["gates.png", "gates.svg", "stream.png", "stream.svg"]
    assert (tmp_path / "f/gates.png").read_bytes().startswith(b"\x89PNG")
    alone = (tmp_path / "f/gates.svg").read_text()
    assert "Gate verdicts" in alone, "a file that travels says what it shows"
    assert "Panel gain of each proposal" in alone


def test_the_command_tells_what_it_wants(tmp_path: Path, data_dir: Path) -> None:
    sample(tmp_path / "bank")
    for args, said in (
        (["--compare", str(tmp_path / "bank")], "--compare takes two bank directories, got 1"),
        ([str(tmp_path / "bank")], "name one bank with --bank"),
        (["--bank", str(tmp_path / "none")], "none"),
    ):
        done = valve("report", *args)
        assert done.returncode != 0
        assert said in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--out", "bank/ledger.jsonl"], "name a file ending in .html"),
        (["--out", "run.pdf"], "name a file ending in .html"),
        (["--out", "bank/new.html"], "inside a bank or its local data"),
        (["--out", "link/new.html"], "inside a bank or its local data"),
        (["--out", "other/new.html"], "inside a bank or its local data"),
        (["--out", "notes.html"], "exists and is no HTML page"),
        (["--out", "folder.html"], "is no file"),
        (["--out", "notes.html/x.html"], "is no folder"),
        (["--out", "x" * 300 + ".html"], "can be written to"),
        (["--out", "new/r.html", "--figures", "notes.html"], "is no folder"),
        (["--out", "new/r.html", "--figures", "notes.html/new"], "is no folder"),
        (["--out", "new/r.html", "--figures", "bank/new"], "inside a bank or its local data"),
        (["--out", "new/r.html", "--figures", "new/r.html"], "names the same place"),
        (["--out", "new/r.html", "--figures", "pictures"], "exists and is no figure of valve's"),
        (["--compare", "bank", "link"], "both are the same bank"),
    ],
)
def test_nothing_is_written_where_it_may_not_be(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bank", "other"):
        sample(Path(name))
    Path("link").symlink_to("bank")
    Path("folder.html").mkdir()
    Path("notes.html").write_text("mine")
    Path("pictures").mkdir()
    Path("pictures/gates.svg").write_text("<svg>mine</svg>")
    ledger = Path("bank/ledger.jsonl").read_bytes()
    done = CliRunner().invoke(app, ["report", *([] if "--compare" in args else ["--bank", "bank"]), *args])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert Path("bank/ledger.jsonl").read_bytes() == ledger
    assert Path("notes.html").read_text() == "mine"
    assert [(p.name, p.read_text()) for p in Path("pictures").iterdir()] == [("gates.svg", "<svg>mine</svg>")]
    assert not Path("new").exists()
    assert not Path("bank/new").exists()


def test_an_experiment_goes_into_no_bank_and_no_file(tmp_path: Path, data_dir: Path) -> None:
    sample(tmp_path / "bank")
    (tmp_path / "file").touch()
    for name, said in (("bank/new", "inside a bank"), ("file", "is no folder")):
        with pytest.raises(ConfigError, match=said):
            folder("--out", tmp_path / name)
    assert not (tmp_path / "bank/new").exists()
    folder("--out", tmp_path / "new/results")
    for name, own in OWN.items():
        path = tmp_path / name
        table("--out", path, own)
        path.write_text(f"mine, but {own.upper()}")
        with pytest.raises(ConfigError, match="exists and is no table"):
            table("--out", path, own)
        path.write_text(markdown(ROWS, "T", simulated=True) if name.endswith("md") else comma_separated(ROWS))
        table("--out", path, own)


def test_a_page_may_be_written_again(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample(Path("bank"))
    Path("r.HTM").touch()
    Path("f").mkdir()
    Path("f/gates.png").touch()
    for _ in range(2):
        done = CliRunner().invoke(app, ["report", "--bank", "bank", "--out", "r.HTM", "--figures", "f"])
        assert done.exit_code == 0, done.stderr
    assert Path("f/gates.png").stat().st_size
    assert Path("r.HTM").read_text().startswith("<!doctype html>")


def test_a_page_without_a_place_has_one_of_its_bank(tmp_path: Path, data_dir: Path) -> None:
    banks = [str(sample(tmp_path / name).dir) for name in "ab"]

    def told(*args: str) -> list[Path]:
        return [Path(CliRunner().invoke(app, ["report", *args]).stdout.strip()) for _ in range(2)]

    places = [told("--bank", banks[0]), told("--bank", banks[1]), told("--compare", *banks)]
    assert all(first == again and first.read_text().startswith("<!doctype html>") for first, again in places)
    assert len({first for first, _ in places}) == 3
    assert all(data_dir in first.parents and first.parent.stat().st_mode & 0o77 == 0 for first, _ in places)
    assert not BankStore.open(Path(banks[0])).local.here, "a page is no rollout that this machine keeps"


def test_without_matplotlib_no_figures_and_nothing_half_written(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    sample(Path("bank"))
    done = CliRunner().invoke(app, ["report", "--bank", "bank", "--out", "new/r.html", "--figures", "f"])
    assert done.exit_code == 2
    assert "not installed; run: pip install 'matplotlib>=3.8'\n" in done.stderr, "a page says it too: no path of here"
    assert not Path("new").exists()
    assert not Path("f").exists()
    done = CliRunner().invoke(app, ["report", "--bank", "bank", "--out", "r.html"])
    assert (done.exit_code, done.stdout) == (0, "r.html\n")
    assert "no figures: matplotlib draws them and is not installed; run: " in done.stderr
    assert "'matplotlib>=3.8'" in done.stderr


def test_json_writes_files_too(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown: list[Path] = []
    monkeypatch.setattr("valve_plugin.cli.browser._opened", lambda page: bool(shown.append(page)) or True)
    sample(Path("bank"))
    done = CliRunner().invoke(
        app, ["report", "--bank", "bank", "--json", "--out", "r.html", "--figures", "f", "--open"]
    )
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["runs"]) == 1
    assert (done.stderr, shown) == ("r.html\n", [tmp_path / "r.html"])
    assert {p.suffix for p in Path("f").iterdir()} == {".svg", ".png"}


def test_banks_are_called_by_what_tells_them_apart() -> None:
    assert _labels([Path("/runs/gated/bank"), Path("/runs/ungated/bank")]) == ["A, gated", "B, ungated"]
    assert _labels([Path("/runs/x/.valve"), Path("/runs/x/other")]) == ["A, .valve", "B, other"]


def test_numbers_of_every_figure_are_json(tmp_path: Path, data_dir: Path) -> None:
    sample(tmp_path / "bank")
    told = json.loads(valve("report", "--bank", str(tmp_path / "bank"), "--json").stdout)
    (run,), (said,) = told["runs"], told["said"]
    assert {"overview", "stream", "gates", "items", "certificates", "terms", "cost"} == set(said)
    assert {"stream", "gates", "sizes", "columns", "items", "spent", "certificate", "ledger"} <= set(run)


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


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
    run = run_facts(maker.store, words)
    path = tmp_path / "r.html"
    path.write_text(page([run], attempts([(run, maker.store.local)], 1_000_000)), encoding="utf-8")
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
        gates = len(run.gates) if event == "beforeprint" else 0
        assert tab.locator("#ledger-list details[open] table:visible").count() == gates, "task by task, no raw line"
        assert tab.locator("#ledger-list details[open]").count() == gates
    bar = tab.locator("nav ul")
    assert bar.evaluate("e => e.scrollWidth <= e.clientWidth"), "all of the menu is seen"
    for name in ("Overview", "Panel", "Cost"):
        tab.locator("nav a", has_text=name).click()
        tab.evaluate("new Promise((done) => { requestAnimationFrame(() => setTimeout(done, 100)); })")
        assert bar.locator("[aria-current]").all_inner_texts() == [name]
    cells = tab.locator(".heat button")
    named = tab.get_by_role("button", name=re.compile(r"^panel_\d, Gate 1: [0-3] of [1-3] attempts? resolved$"))
    first = next(c for c in run.columns if c.label == "Gate 1")
    assert named.count() == len(first.cells), "what a cell is called"
    cells.first.press("Enter")
    at_heading = "document.activeElement === document.querySelector('dialog h2')"
    dialog, before = tab.locator("dialog[open]"), tab.evaluate("scrollY")
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
    assert "attempt 1, resolved: ran commands that attempt 2 did not, first at step 2 of 2 steps" in item.inner_text()
    item.locator("button[data-step]").first.click()
    shown = tab.locator("dialog[open]")
    assert "Where it parts: step 2" in shown.inner_text()
    assert shown.locator("mark").all_inner_texts() == ["Step 2"]
    tab.keyboard.press("Escape")
    assert said == []
