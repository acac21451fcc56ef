"""Filters of the templates: numbers to read, and text that stays text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from tests.report.parsed import Seen
from valve_plugin.report.templates import (
    allow_breaks,
    code_spans,
    environment,
    join_numbers,
    render_markdown,
    signed_points,
    split_caption,
)
from valve_plugin.words import duration, format_time

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


@given(st.text() | st.text(alphabet="SIMULATION.: A"))
def test_a_caption_is_cut_behind_its_first_sentence(text: str) -> None:
    assert " ".join(filter(None, split_caption(text))) == text
    told = "SIMULATION: a script. Drawn at 1.5 points. More. Still more."
    assert split_caption(told) == ("SIMULATION: a script. Drawn at 1.5 points.", "More. Still more.")


@given(st.sets(st.integers(1, 30)))
def test_ranges_say_each_number(numbers: set[int]) -> None:
    said: set[int] = set()
    for part in filter(None, re.split(", | and ", join_numbers(sorted(numbers)))):
        low, _, high = part.partition(" to ")
        said |= set(range(int(low), int(high or low) + 1))
    assert said == numbers


@given(st.floats(0, 100))
def test_times_are_read_alike(hours: float) -> None:
    number, unit = duration(hours).split()
    least, _, part = number.partition(":")
    read = float(number) if unit == "s" else 60 * int(least) + int(part)
    assert read == pytest.approx(3600 * hours / (60 if unit == "h" else 1), abs=0.51)
    assert unit == "s" or (len(part), int(part) < 60, int(least) > 0) == (2, True, True)


@given(st.floats(allow_nan=True) | st.floats(0, 4e9))
def test_a_moment_is_told_or_unknown(seconds: float) -> None:
    assert format_time(seconds) == "unknown" or format_time(seconds).endswith(" UTC")
    assert format_time(0.0) == format_time(float("inf")) == format_time(float("nan")) == "unknown"


def test_gains_in_points() -> None:
    assert [signed_points(rate) for rate in (0.0, -0.0001, 0.042, -0.1)] == ["0.0", "0.0", "+4.2", "-10.0"]


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
