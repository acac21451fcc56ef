"""Other ways to read a text, each with the places in the text: escapes undone, in pieces, decoded."""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, compress

_ESCAPE = re.compile(
    r"[\\%&\x1b\xad\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff](?:"
    r"(?<=\\)\\{0,7}(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|u\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|([0-3][0-7]{2})"
    r"|([nrt\"'/]))|(?<=%)(?:25){0,4}([0-9a-fA-F]{2})"
    r"|(?<=&)(?:#[xX]([0-9a-fA-F]{1,6});|#(\d{1,7});|(amp|lt|gt|quot|apos);)|(?<=\x1b)\[[0-?]{0,32}[ -/]{0,4}[@-~]"
    r"|(?<=[^\\%&\x1b]))"
)
"""What stands for a character in strings, in URLs, in HTML; then colours and marks without width."""
_COLOUR = re.compile(r"\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]")
_JOIN = re.compile(
    r"[\"'`](?:\s{0,20}(?:\+{1,2}|\.{1,2}|&|<>|\|\||\\\r?\n)\s{0,20}[@rbuf]?[\"'`]|[ \t]*\r?\n[ \t]{1,40}[\"'](?=\w))"
)
"""What joins two strings in a program."""
_BASES = (0, 16, 16, 16, 16, 8, 0, 16, 16, 10)
_SIGNS = {"n": "\n", "r": "\r", "t": "\t", "amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_NO_SIGNS = {*range(9), *range(14, 27), *range(28, 32), *range(127, 256)}
"""Bytes of data that is no text; `\\x7f` stands for each of them that was escaped."""
_LOWER = bytes(range(256)).lower()
_NEITHER = bytes(c for c in range(256) if not chr(c).isalnum() or c > 127)
_IS_SMALL = bytes(c not in _NEITHER for c in range(256))
_QUOTED = re.compile(r"([\"'])([^\"'\s]{1,60})\1(?!\s{0,4}[:\]])")
_LAST_WORD = re.compile(r"(?<![A-Za-z0-9])([A-Za-z0-9]+)[^A-Za-z0-9\n]*$", re.MULTILINE)
_DUMP = re.compile(
    r"^[+>]?[ \t]{0,8}[0-9a-f]{6,16}:?[ \t]{1,4}"
    r"((?:[0-9a-f]{2,8}[ \t]{1,3}){0,31}[0-9a-f]{2,8})(?:[ \t]{1,80}([^\n]{1,66}))?$",
    re.MULTILINE | re.IGNORECASE,
)
"""A line of bytes, as `xxd` and `od` print them: its place, numbers, and perhaps letters."""
_RUN = re.compile(r"(?:[A-Za-z0-9+/_-]{16,}(?:={0,6}\r?\n[ \t>|]{0,16})?)+")
_LINE = re.compile(r"[A-Za-z0-9+/_=-]{16,}")
_PACKED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MOST_PACKED = 4
"""Times its size that compressed data is unpacked to, so that the time stays linear."""


class Reading:
    """A text with its escapes undone and its strings joined, in ASCII; look-alikes of ASCII are it, others are `?`."""

    def __init__(self, text: str) -> None:
        """Read a text."""
        self._layers: list[tuple[list[int], list[int]]] = []
        for pattern in (_ESCAPE, _COLOUR, _JOIN):
            text = self._undo(pattern, text)
        self.text = text if text.isascii() else text.translate(_Ascii())

    def place(self, n: int) -> int:
        """Return the place of a character of `text` in the original."""
        for at, origin in reversed(self._layers):
            k = bisect_right(at, n) - 1
            n = n if k < 0 else origin[k] + n - at[k]
        return n

    def _undo(self, pattern: re.Pattern[str], text: str) -> str:
        parts, at, origin, done, length = list[str](), list[int](), list[int](), 0, 0
        for match in pattern.finditer(text):
            sign = _meant(match)
            parts += [text[done : match.start()], sign]
            length += match.start() - done + len(sign)
            done = match.end()
            at.append(length)
            origin.append(done)
        self._layers.append((at, origin))
        return "".join([*parts, text[done:]])


class _Ascii(dict[int, str]):
    """How ASCII shows a character, by its number; filled as asked."""

    def __missing__(self, number: int) -> str:
        sign = chr(number)
        form = sign if number < 256 else unicodedata.normalize("NFKC", sign)
        self[number] = form if len(form) == 1 and form.isascii() else "?"
        return self[number]


def _meant(match: re.Match[str]) -> str:
    group = match.lastindex
    if not group or match.re is not _ESCAPE:
        return ""
    value, base = match[group], _BASES[group] if group < len(_BASES) else 0
    if not base:
        return _SIGNS.get(value, value)
    number = int(value, base)
    if group == 4 and number in _NO_SIGNS:
        return "\x7f"
    return chr(number) if number < 0x110000 else "?"


def letters_of(text: str) -> bytes:
    """Return the letters and digits of a text in lower case, others than ASCII's left out."""
    return text.encode("ascii", "replace").translate(_LOWER, _NEITHER)


class Letters:
    """The letters and digits of a text or of parts of it, in lower case, and where they stand."""

    def __init__(self, text: str, parts: Iterable[tuple[int, int]]) -> None:
        """Take an ASCII text and the parts of it that are read, as (start, end)."""
        self._parts = list(parts)
        self._flat = "".join([text[start:end] for start, end in self._parts]).encode("ascii")
        self.small = self._flat.translate(_LOWER, _NEITHER)
        self._places = array("Q")
        self._starts: list[int] = []

    def place(self, n: int) -> int:
        """Return where in the text the n-th letter or digit stands."""
        if not self._places:
            self._places = array("Q", compress(range(len(self._flat)), self._flat.translate(_IS_SMALL)))
            self._starts = [0, *accumulate(end - start for start, end in self._parts)]
        inside = self._places[n]
        part = bisect_right(self._starts, inside) - 1
        return self._parts[part][0] + inside - self._starts[part]


def readings(text: str) -> Iterator[Letters]:
    """Yield the letters of a text in ASCII, of what stands in quotes (not names), of lines' last words, of dumps."""
    yield Letters(text, [(0, len(text))])
    yield Letters(text, (match.span(2) for match in _QUOTED.finditer(text)))
    yield Letters(text, (match.span(1) for match in _LAST_WORD.finditer(text)))
    dump = list(_DUMP.finditer(text))
    for column in (1, 2) if len(dump) > 1 else ():
        yield Letters(text, (match.span(column) for match in dump if match[column]))


def decoded(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, text) of all that reads as text in hex, base32 or base64, also packed, on one line or more."""
    for run in _RUN.finditer(text):
        lines = [(m.start(), m.end(), m[0]) for m in _LINE.finditer(text, run.start(), run.end())]
        whole = "".join(line.rstrip("=") for _, _, line in lines)
        several = [(*run.span(), whole), (*run.span(), "".join(line.lstrip("+") for _, _, line in lines))]
        for start, end, part in several if len(lines) > 1 else lines:
            if inside := _inside(part):
                yield start, end, inside
                break
        else:
            for start, end, line in lines if len(lines) > 1 else ():
                if inside := _inside(line):
                    yield start, end, inside


def _inside(code: str) -> str:
    """Return the text that a code holds; empty where it holds none."""
    bare = code.rstrip("=")
    try:
        if re.fullmatch(r"(?:[0-9a-f]{2})+|(?:[0-9A-F]{2})+", bare):
            data = bytes.fromhex(bare)
        elif re.fullmatch(r"[A-Z2-7]+|[a-z2-7]+", bare):
            data = base64.b32decode(bare.upper() + "=" * (-len(bare) % 8))
        else:
            bare = bare[: len(bare) - (len(bare) % 4 == 1)]
            data = base64.b64decode(bare + "=" * (-len(bare) % 4), b"-_" if "-" in bare or "_" in bare else None)
        if data[:2] in _PACKED:
            data = zlib.decompressobj(47).decompress(data, _MOST_PACKED * len(data))
        text = data.replace(b"\0", b"").decode("utf-8")
    except (binascii.Error, ValueError, zlib.error):
        return ""
    return "" if _NO_TEXT.search(text) else text
