"""Format numbers, rates and times as text, and words for a shell. Pure."""

from __future__ import annotations

import os
import re
import shlex
import time
import unicodedata
from collections.abc import Iterable


def plural(number: int, one: str, many: str = "") -> str:
    """Return `1 task`, `2,000 tasks`; `many` where adding an s is not enough."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def points(rate: float) -> str:
    """Return a difference of rates in points: `+3.1 points`."""
    return f"{100 * rate:+.1f} points"


def duration(hours: float) -> str:
    """Return a duration as text: `3.2 s`, `1:53 min`, `2:05 h`."""
    seconds = 3600 * hours
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    number, unit = (round(seconds), "min") if round(seconds) < 3600 else (round(60 * hours), "h")
    return f"{number // 60}:{number % 60:02} {unit}"


def clock(seconds: float) -> str:
    """Return whole seconds as m:ss, from an hour on as h:mm:ss."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def format_time(seconds: float, *, local: bool = False) -> str:
    """Return a time in seconds since the epoch as text, in UTC or the local time zone; `unknown` for 0."""
    try:
        parts = time.localtime(seconds) if local else time.gmtime(seconds)
    except (OverflowError, ValueError, OSError):  # out of range
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M", parts) + ("" if local else " UTC") if seconds else "unknown"


def one_line(text: str) -> str:
    """Return text as one line of at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:299] + "…"


_PLAIN = bytes((*b"\t\n", *range(32, 127)))
# Format and control characters, variation selectors, fillers that look like nothing, and lone surrogates.
_SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\ud800-\udfff]+"
)


def hidden_characters(text: str) -> list[str]:
    """Return the characters that hide what a text says, each once, as in `U+202E`.

    They are control characters and escape codes, changes of the reading direction, characters without width, tags
    and variation selectors. Those that a script or an emoji needs are fine where they stand alone after one.
    """
    if text.isascii() and not text.encode().translate(None, _PLAIN):
        return []
    found = (m[0] for m in _SUSPECT.finditer(text) if not _is_ordinary(text, m))
    return sorted({f"U+{ord(c):04X}" for run in found for c in run})


def visible(text: str) -> str:
    """Return a text in which characters that hide something stand as their code points, as in `[U+202E]`."""

    def shown(match: re.Match[str]) -> str:
        return match[0] if _is_ordinary(text, match) else "".join(f"[U+{ord(c):04X}]" for c in match[0])

    return _SUSPECT.sub(shown, text)


def _is_ordinary(text: str, match: re.Match[str]) -> bool:
    """Whether a suspect character is one that spelling needs: after an emoji, in Arabic or Indic words, a line end."""
    run, before = match[0], text[match.start() - 1 : match.start()]
    after = text[match.end() : match.end() + 1]
    if run == "\r":
        return after == "\n"
    symbol = bool(before) and (unicodedata.category(before) in ("So", "Sm", "Sk", "Po") or before in "0123456789#*")
    if run in ("\ufe0e", "\ufe0f", "\u200d", "\ufe0f\u200d"):
        joins = "\u200d" not in run or (bool(after) and unicodedata.category(after) == "So")
        if symbol and joins:
            return True
    if run in ("\u200c", "\u200d"):
        return "\u0600" <= before <= "\u10ff" and after.isalpha()
    if run in ("\u200e", "\u200f"):
        return any(unicodedata.bidirectional(c) in ("R", "AL") for c in before + after)
    return "\U000e0100" <= run <= "\U000e01ef" and len(run) == 1 and unicodedata.category(before or " ") == "Lo"


def quote(word: str) -> str:
    """Return a word quoted for bash and zsh, in characters that a terminal shows and copies unchanged."""
    if all(char.isprintable() for char in word) and " ".join(word.split()) == word:
        return shlex.quote(word)
    return f"$'{''.join(map(_escape, word))}'"


def join(words: Iterable[str]) -> str:
    """Return words as one command."""
    return " ".join(map(quote, words))


def _escape(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable() and char != " ":
        return char
    try:
        raw = os.fsencode(char)  # a byte of a file's name that is no text
    except UnicodeEncodeError:
        raw = char.encode("utf-8", "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in raw)
