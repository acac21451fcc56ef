"""Filters of the templates: numbers to read, and text that stays text."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from tests.report.parsed import Seen
from valve_plugin.report.templates import allow_breaks, code_spans, environment, render_markdown

_MARKDOWN = "p h1 h2 h3 h4 h5 h6 em strong code pre ul ol li blockquote hr br table thead tbody tr th td"
_MARKDOWN_TAGS = frozenset(re.findall(r"\w+", _MARKDOWN))


@given(st.text() | st.text(alphabet="<>[]()!`*_#-|&\n ahref:"))
def test_markdown_is_inert(text: str) -> None:
    for tag, attributes in Seen(str(render_markdown(text))).tags:
        assert tag in _MARKDOWN_TAGS
        assert set(attributes) <= {"class", "start", "style"}
        assert not (style := attributes.get("style")) or re.fullmatch(r"text-align:(left|right|center)", style)


@given(st.text() | st.text(alphabet="`<>&ab"))
def test_our_own_words_stay_text(text: str) -> None:
    assert {tag for tag, _ in Seen(str(code_spans(text))).tags} <= {"code"}
    assert str(code_spans("see `valve plan`")) == "see <code>valve plan</code>"
    assert str(code_spans("one ` only")) == "one ` only"


@given(st.text() | st.text(alphabet="_<>&a"))
def test_names_may_break_after_underscores_and_stay_text(text: str) -> None:
    html = str(allow_breaks(text))
    assert {tag for tag, _ in Seen(html).tags} <= {"wbr"}
    assert html.count("<wbr>") == len(re.findall("_+", text))
    assert html.replace("<wbr>", "") == str(escape(text))


def test_every_statement_of_the_code_has_its_macro_and_no_macro_is_left() -> None:
    """Where a macro is missing only some bank's page would show it."""
    source = Path(__file__).parents[2] / "valve_plugin/report"
    code = "".join(path.read_text() for path in source.glob("*.py"))
    named = set(re.findall(r'statement\(\s*"(\w+)"', code))
    for part in ("title", "caption", "message"):
        named |= {f"{figure}_{part}" for figure in re.findall(r'_figure\(\s*"(\w+)"', code)}
    for about in set(re.findall(r'AnswerCard\(\s*"(\w+)"', code)):
        named |= {f"{about}_headline", f"{about}_reason"}
    macros = {name for name in dir(environment(html=False).get_template("sentences.j2").module) if name[0] != "_"}
    templates = "".join(path.read_text() for path in (source / "assets").glob("*.j2"))
    assert named <= macros
    assert [m for m in macros - named if len(re.findall(rf"\b{m}\(", templates)) < 2] == []
