"""Texts that hide something, and how they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.words import hidden_characters, visible

FLAG = "\U0001f3f4\U000e0067\U000e0062\U000e007f"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pay \u202edaer", ["U+202E"]),
        ("a\u2066b\u2069", ["U+2066", "U+2069"]),
        ("run\u200b this", ["U+200B"]),
        ("\ufeffstart", ["U+FEFF"]),
        ("so\u00adft", ["U+00AD"]),
        ("\x1b[8mhidden\x1b[0m", ["U+001B"]),
        ("over\rwritten", ["U+000D"]),
        ("\x9b2J", ["U+009B"]),
        ("tag\U000e0041\U000e0042", ["U+E0041", "U+E0042"]),
        ("data" + "\ufe01\ufe02", ["U+FE01", "U+FE02"]),
        ("data\U000e0101", ["U+E0101"]),
        ("x\ufe0f", ["U+FE0F"]),
        ("❤\ufe0f\ufe0f", ["U+FE0F"]),
        ("a\u200db", ["U+200D"]),
        ("left\u200eright", ["U+200E"]),
        ("blank\u3164name", ["U+3164"]),
        ("null\x00", ["U+0000"]),
        ("half\ud800", ["U+D800"]),
        (FLAG, ["U+E0062", "U+E0067", "U+E007F"]),
    ],
)
def test_what_hides_a_text_is_named_and_shown(text: str, found: list[str]) -> None:
    assert hidden_characters(text) == found
    shown = visible(text)
    assert all(f"[{point}]" in shown for point in found)
    assert hidden_characters(shown) == []


@pytest.mark.parametrize(
    "text",
    [
        "plain\ttext\r\nwith lines\n",
        "naïve café — “quotes” … 日本語 Ελληνικά русский",
        "heart ❤\ufe0f, warning ⚠\ufe0f, keycap 1\ufe0f\u20e3, family 👨\u200d👩\u200d👧, check ✔\ufe0e",
        "rainbow 🏳\ufe0f\u200d🌈",
        "می\u200cخواهم",  # noqa: RUF001
        "क्\u200dष",
        "עברית\u200f, العربية\u200e",
        "葛\U000e0100城",
    ],
)
def test_what_spelling_needs_is_fine(text: str) -> None:
    assert hidden_characters(text) == []
    assert visible(text) == text


@given(st.text())
def test_a_shown_text_hides_nothing_more_and_stays_so(text: str) -> None:
    assert (visible(text) == text) == (not hidden_characters(text))
    assert visible(visible(text)) == visible(text)
