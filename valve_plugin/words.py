"""Format numbers, rates and times as text, and words for a shell. Pure."""

from __future__ import annotations

import functools
import html
import os
import re
import shlex
import time
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


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


_UNUSUAL = re.compile(r"[^\x20-\x7e\t\n]")
_SELECTOR = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159"
"""Letters, marks and symbols that look like nothing; every other character of their categories shows something."""
_MOST_MARKS = 4
"""Marks on one letter: some scripts stack three."""
_MARKED = re.compile(r"<|!\[|\][(:]|``|~{3}|\\(?:[hv]?phantom|(?:text)?color)")
"""Without any of these, nothing of Markdown hides a word."""
_CODE_ALONE = re.compile(r"`[^`\n]+`")
_LANGUAGE = re.compile(r"[ ]?[\w+#.-]{0,20}[ ]*")
_DRAWN = ("mermaid", "math", "geojson", "topojson", "stl")
"""Languages of fences that a page draws, so that their text is no code."""
_DEEPEST = 16
"""Blocks in each other (a list counts twice); from 20 on, the parser leaves text out."""
_NOT_SHOWN = {
    "an HTML comment": r"<!--|<![A-Z\[]|<\?[a-z=]",
    # an element whose text is not shown as such, a tag with attributes, and what is too long for a placeholder
    "HTML that folds or drops text": r"</?(?:details|summary|dialog|template|title|head|meta|link|style|script|object"
    r"|no(?:script|embed|frames)|iframe|frameset|fencedframe|applet|audio|video|canvas|svg|math|select|datalist"
    r"|textarea|progress|meter|rp)\b[^<>]*>|<[A-Za-z][\w:-]{0,40}[\s/][^>]{0,300}=|<[A-Za-z][^<>]{60,}>"
    r"|<[A-Za-z][^>]{0,300}[\s/](?:hidden|popover)[\s/>]",
    "an image": r"!\[",
    "a link without words": r"(?<!!)\[\s*\]\(",
    "a title of a link": r"\]\((?:<|(?:[^()\s\\]|\\.|\([^()\s]{0,100}\)){0,500}\s+[\"'(])",
    "a definition of a link": r"^[ \t>*+\-\d.)]*\[(?:[^\]\\]|\\.){1,999}\]:",
    "words after a fence": r"^[ \t>*+\-\d.)]*(?:`{3,}|~{3,})[ \t]*[^\s`]+[ \t]+\S",
    "words that a drawing or a formula leaves out": r"\\(?:[hv]?phantom|(?:text)?color)\b|^mermaid: [ \t]*%%"
    r"|^math: (?:[^\\%\n]|\\.)*%|^(?:geojson|topojson|stl): ",
}
_LONG_GAPS = {"many blank lines": r"\n(?:[^\S\n]*\n){7}", "many spaces": r"[^\S\n]{80}|\t{10}"}


def hiding_places(text: str) -> list[str]:
    """Return what keeps a person from reading a text: hidden characters, and what a page of Markdown does not show."""
    paired = "\\" not in text and all(line.count("`") % 2 == 0 for line in text.split("\n"))
    rest = _CODE_ALONE.sub("`", text) if paired and "``" not in text else text
    prose = _without_code(text) if _MARKED.search(rest) else rest
    found = [name for name, pattern in _LONG_GAPS.items() if re.search(pattern, text)]
    found += [name for name, pattern in _NOT_SHOWN.items() if re.search(pattern, prose, re.MULTILINE | re.IGNORECASE)]
    characters = hidden_characters(text) or hidden_characters(html.unescape(prose))  # a page reads `&#8203;`
    return characters + found


@functools.lru_cache(maxsize=4096)  # a bank's items are asked more than once
def _without_code(text: str) -> str:
    """Return the parts of a text that a page of Markdown, with or without tables, does not show as code.

    What is not sure to be code stays in. Links and definitions stand as the patterns of `_NOT_SHOWN` expect them.
    """
    parts = []
    for parser in _parsers():
        env: dict[str, Any] = {}
        tokens = parser.parse(text, env)
        if any(token.level > _DEEPEST for token in tokens):
            return text
        parts += [f"[{label}]:" for label in env.get("references", ())]
        parts += map(_prose, tokens)
    return "\n\n".join(filter(None, parts))


@functools.cache
def _parsers() -> list[MarkdownIt]:
    from markdown_it import MarkdownIt

    # Without text_join, what was escaped stays apart from other text.
    return [
        MarkdownIt("commonmark").disable("text_join"),
        MarkdownIt("commonmark").disable("text_join").enable("table"),
    ]


def _prose(token: Token) -> str:
    """Return a token's text as written; for code, as little as nothing."""
    if token.type == "fence":
        language, is_plain = token.info.strip().lower(), _LANGUAGE.fullmatch(token.info)
        drawn = re.sub("^", f"{language}: ", token.content, flags=re.MULTILINE) if language in _DRAWN else ""
        return drawn if is_plain else f"{token.markup}{token.info.replace('`', '-')}\n{token.content}"
    if token.children is not None and token.type == "inline":
        return "".join(map(_prose, token.children))
    if token.type == "link_open":
        return "" if token.info == "auto" else '](x "t") [' if token.attrGet("title") else "["
    if token.type == "link_close":
        return "" if token.info == "auto" else "]()"
    written = {"code_inline": "`", "softbreak": "\n", "hardbreak": "\n", "image": "![", "text_special": token.markup}
    return written.get(token.type, token.content or token.markup)


def hidden_characters(text: str) -> list[str]:
    """Return the characters that hide what a text says, each once, as in `U+202E`.

    Letters, marks, digits, signs and single spaces show themselves; all others hide something, but for what a script
    or an emoji needs between its own.
    """
    return sorted({f"U+{ord(m[0]):04X}" for m in _UNUSUAL.finditer(text) if not _shows(text, m.start())})


def visible(text: str, form: str = "[U+{:04X}]") -> str:
    """Return a text in which characters that hide something stand as their code points, or as `form` has them."""
    shown = _UNUSUAL.sub(lambda m: m[0] if _shows(text, m.start()) else form.format(ord(m[0])), text)
    return text if shown == text else visible(shown, form)  # a character may need one that went


def _shows(text: str, n: int) -> bool:
    """Whether a reader sees the n-th character of a text, or spelling needs it there."""
    sign, category = text[n], unicodedata.category(text[n])
    if category[0] == "C" or category in ("Zl", "Zp") or sign in _BLANK or _SELECTOR.match(sign):
        before, after = text[n - 1] if n else " ", text[n + 1 : n + 2] or " "
        return after == "\n" if sign == "\r" else _is_needed(sign, before, after, text[n - 2] if n > 1 else " ")
    if category[0] == "M":
        return any(unicodedata.category(c)[0] != "M" for c in text[max(n - _MOST_MARKS, 0) : n]) or n < _MOST_MARKS
    return category != "Zs" or not text[n - 2 : n].isspace() or n < 2


def _is_needed(sign: str, before: str, after: str, first: str) -> bool:
    """Whether the characters around one that is not seen are of a script or an emoji that needs it there."""
    if sign in "\u200c\u200d" and "\u0600" <= before <= "\u18aa" and before.isprintable():
        return (after.isalpha() and after > "\u0600") or unicodedata.combining(before) == 9
    if sign in "\u200d\ufe0e\ufe0f":
        emoji = first if before == "\ufe0f" and sign == "\u200d" else before
        joins = sign != "\u200d" or unicodedata.category(after) == "So"
        keycap = emoji in "0123456789#*" and after == "\u20e3"
        return keycap or (
            joins and emoji > "\x7f" and (unicodedata.category(emoji) in ("So", "Sm", "Sk") or emoji in "‼⁉")
        )
    if sign in "\u200e\u200f\u061c":
        return any(c.isprintable() and unicodedata.bidirectional(c) in ("R", "AL") for c in before + after)
    if sign == "\u200b":  # between words of scripts that write no spaces
        return all(
            "\u0e00" <= c <= "\u0fff" or "\u1000" <= c <= "\u109f" or "\u1780" <= c <= "\u17ff" for c in before + after
        )
    # Not needed are the 240 variants of Chinese characters: with so many one can write a text that nobody sees.
    return sign in "\u180b\u180c\u180d\u180e\u180f" and "\u1820" <= before <= "\u18aa"


def meant(given: str, names: Iterable[str], most: int = 1, near: float = 0.6) -> str:
    """Return `did you mean 'task'?` for a name that is nearly one of some, in whatever capitals; "" for another.

    Args:
        most: how many names are suggested.
        near: what share must be the same, 0 to 1.
    """
    import difflib  # slow to load, and only mistakes need it

    known = {name.lower(): name for name in names}
    found = difflib.get_close_matches(given.lower(), known, most, near)
    return f"did you mean {' or '.join(repr(known[name]) for name in found)}?" if found else ""


def outcome_word(outcome: str) -> str:
    """Return an attempt's outcome as people read it: `passed`, `failed` or what else it is."""
    return {"resolved": "passed", "unresolved": "failed"}.get(outcome, outcome)


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
