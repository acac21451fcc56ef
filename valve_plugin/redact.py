"""Take secrets out of what VALVE writes: first by value, then by kinds.

By value is the strong half: whatever the environment, `.env` files or the model's configuration hold under a
key-like name is replaced wherever it appears, also encoded, backwards, in pieces or cut. The kinds (`secret_shapes`)
catch what the process never knew. The time is linear in the text.
"""

from __future__ import annotations

import base64
import codecs
import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from valve_plugin.files import read_regular
from valve_plugin.readings import Reading, decoded, letters_of, readings
from valve_plugin.secret_shapes import Span, find, is_random, table

_FRAGMENT = 11
"""Letters and digits of the shortest part of a known value that is looked for: with eight of them anywhere in it, at
every fourth place, none is missed."""
_SHORTEST = 8
"""Letters and digits of the shortest known value that is looked for whatever stands between them."""
_LONGEST = 1_000
"""Characters of a known value whose parts are looked for."""
MIN_NAMED = 6
"""Characters of the shortest value that is redacted for its key-like name."""
MIN_ANY = 8
"""Characters of the shortest value of an `.env` file that is redacted whatever its name."""
_DEEPEST = 3
"""Codes in codes that are undone."""
_MAX_DIRS, _MAX_DEPTH, _MAX_ENV_BYTES = 500, 3, 1_000_000
_SKIP_DIRS = {".git", "node_modules", "__pycache__", "site-packages"}
# Values of `.env` files that say nothing: replacing them would only make texts unreadable.
# fmt: off
_PLAIN = frozenset((
    "development", "production", "localhost", "127.0.0.1", "postgres", "postgresql", "password", "username",
    "changeme", "disabled", "enabled", "required", "optional", "database", "redacted",
))
# fmt: on
_KEY_ENDS = ("apikey", "token", "secret", "password", "passwd")
# Compiled on first use, as the formats are: most processes never meet the text they are for.
_ASSIGNMENT = (
    r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_][\w.]*)[ \t]*[=:][ \t]*"
    r"(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\r\n]*))"
)
_ESCAPE = r"(?s)\\(.)"


class Redactor:
    """The secrets of one process and workspace, ready to be replaced in any number of texts."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Take secret value -> label, for example {"hunter22": "DB_PASSWORD"}."""
        self._exact: dict[str, str] = {}
        self._short: dict[bytes, _Piece] = {}
        self._windows: dict[int, list[tuple[_Piece, int]]] = {}
        for value in sorted(secrets, key=lambda v: (-len(v), v)):
            label = secrets[value]
            whole = len(letters_of(value)) >= _SHORTEST and Reading(value).text == value
            for form in (value,) if whole else _forms(value):
                self._exact.setdefault(form, label)
            for piece in _pieces(value, label):
                if len(piece.small) < _FRAGMENT:
                    self._short.setdefault(piece.small, piece)
                for first in range(min(8, len(piece.small) - 7)):
                    view = memoryview(piece.small)[first : first + (len(piece.small) - first) // 8 * 8].cast("Q")
                    for n, window in enumerate(view):
                        self._windows.setdefault(window, []).append((piece, first + 8 * n))

    @classmethod
    def of(cls, environ: Mapping[str, str], workspace: Path | None = None, config: Any = None) -> Redactor:
        """Return a redactor of all that `gather` finds."""
        return cls(gather(environ, workspace, config))

    def __call__(self, text: str) -> str:
        """Return the text with every secret replaced by `[redacted:<what>]`."""
        return _replaced(text, 0, len(text), self._spans(text))

    def tree(self, value: Any) -> Any:
        """Redact every string of nested plain data, keys included; names are read with the values given to them."""
        parts = list(_all_strings(value))
        text = "".join(part + glue for part, glue in parts)
        spans = self._spans(text)
        places = iter(_places(parts))
        return self._walk(value, lambda: _replaced(text, *next(places), spans))

    def _walk(self, value: Any, next_text: Callable[[], str]) -> Any:
        if isinstance(value, str):
            return next_text()
        if isinstance(value, Mapping):
            return {next_text() if isinstance(k, str) else k: self._walk(v, next_text) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._walk(v, next_text) for v in value]
        return value

    def shown(self, value: object) -> str:
        """Return the redacted text of an object that has no other form."""
        return self(str(value))

    def leaks(self, data: bytes) -> bool:
        """Tell whether binary data holds a secret: such a file cannot be redacted, only left out."""
        return bool(self._spans(data.decode("latin-1"))) or any(_bytes(form) in data for form in self._exact)

    def _spans(self, text: str, depth: int = 0) -> list[Span]:
        """Return the secrets of a text, in order and apart; of two that overlap the known one names both."""
        reading = Reading(text)
        known = list(self._spread(reading.text)) if self._windows else []
        shaped = list(find(reading.text))
        for start, end, inside in decoded(reading.text) if depth < _DEEPEST else ():
            shaped += [(start, end, label) for _, _, label in self._spans(inside, depth + 1)[:1]]
        every = [
            (reading.place(start), reading.place(end), rank, label)
            for rank, found in enumerate((known, shaped))
            for start, end, label in found
        ]
        for form, label in self._exact.items():
            at = text.find(form)
            while at >= 0:
                every.append((at, at + len(form), 0, label))
                at = text.find(form, at + len(form))
        merged: list[tuple[int, int, int, str]] = []
        for start, end, rank, label in sorted(every):
            if merged and start < merged[-1][1]:
                last = merged[-1]
                name = label if rank < last[2] else last[3]
                merged[-1] = (last[0], max(last[1], end), min(rank, last[2]), name)
            else:
                merged.append((start, end, rank, label))
        return [(start, end, label) for start, end, _, label in merged if end > start]

    def _spread(self, text: str) -> Iterator[Span]:
        """Yield where a known value stands in pieces: with spaces, quotes, names or line ends in between.

        Only letters and digits count, in lower case. Every eighth byte's number is looked up among those of all
        values, so the time does not depend on how many there are.
        """
        for n, letters in enumerate(readings(text)):
            steps = ((0, 1), *((first, step) for step in (2, 3) for first in range(step) if not n))
            for first, step in steps:
                for start, end, piece in self._found(letters.small[first::step]):
                    begin, last = (letters.place(first + step * at) for at in (start, end - 1))
                    end = last + 1
                    if piece.tail and text.startswith(piece.tail, end):
                        end += len(piece.tail)
                    if piece.head and text.endswith(piece.head, 0, begin):
                        begin -= len(piece.head)
                    yield begin, end, piece.label

    def _found(self, small: bytes) -> Iterator[tuple[int, int, _Piece]]:
        """Yield (start, end, piece) of the known values, or long parts of them, in a row of letters."""
        for short, piece in self._short.items():
            at = small.find(short)
            while at >= 0:
                yield at, at + len(short), piece
                at = small.find(short, at + len(short))
        hits = []
        for first in (0, 4):
            whole = memoryview(small)[first : first + (len(small) - first) // 8 * 8] if len(small) >= first + 8 else b""
            numbers = memoryview(whole).cast("Q") if whole else ()
            hits += [(first + 8 * n, number) for n, number in enumerate(numbers) if number in self._windows]
        done = 0
        for at, number in sorted(hits):
            if at >= done:
                several = [(*_extend(small, at, piece.small, own, done), piece) for piece, own in self._windows[number]]
                good = [s for s in several if s[1] - s[0] == len(s[2].small) or s[1] - s[0] >= s[2].least]
                if good:
                    yield max(good, key=lambda s: s[1] - s[0])
                    done = max(s[1] for s in good)


class _Piece(NamedTuple):
    """One form of a known value, reduced to small letters and digits."""

    small: bytes
    label: str
    least: int
    """How many letters and digits of it tell the whole."""
    head: str = ""
    """Signs before the first letter or digit."""
    tail: str = ""


def _extend(small: bytes, at: int, known: bytes, own: int, done: int) -> tuple[int, int]:
    """Return how far a text agrees with a known value around the window that was found at `at`, its `own`."""
    start, first = at, own
    while first and start > done and small[start - 1] == known[first - 1]:
        start, first = start - 1, first - 1
    end, last = at + 8, own + 8
    while last < len(known) and end < len(small) and small[end] == known[last]:
        end, last = end + 1, last + 1
    return start, end


def _replaced(text: str, start: int, end: int, spans: Sequence[Span]) -> str:
    """Return a part of a text with the secrets in it replaced."""
    parts = []
    for n in range(bisect_right(spans, start, key=lambda span: span[1]), len(spans)):
        first, last, label = spans[n]
        if first >= end:
            break
        parts += [text[start : max(first, start)], f"[redacted:{label}]"]
        start = min(last, end)
    return "".join([*parts, text[start:end]])


def gather(environ: Mapping[str, str], workspace: Path | None = None, config: Any = None) -> dict[str, str]:
    """Return secret value -> where it is from.

    Args:
        environ: environment variables; values under key-like names count, and passwords inside URLs.
        workspace: a directory whose `.env` files are read, three levels deep; None reads only mini's own.
        config: nested plain data (mini's model configuration); strings under key-like names count.
    """
    from platformdirs import user_config_path

    own = Path(environ.get("MSWEA_GLOBAL_CONFIG_DIR") or user_config_path("mini-swe-agent")) / ".env"
    found: dict[str, str] = {}
    for path in [own, *(_env_files(workspace) if workspace else ())]:
        found.update(_of_env_file(path))
    found.update(_of_config(config))
    for name, value in environ.items():
        if _is_secret(name, value.strip(), anything=False):
            found[value.strip()] = name
        elif "://" in value and (m := re.search(r"://[^\s/:@]*:([^\s/@]{4,})@", value)):
            found[m[1]] = name
    return found


@lru_cache(maxsize=4096)
def is_key_name(name: str) -> bool:
    """Tell whether a variable or setting of this name usually holds a secret (API_KEY, dbPassword, GH_TOKEN)."""
    if name in ("PWD", "OLDPWD"):  # the working directory
        return False
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    rows = table().words
    known = rows["password"] | rows["secret"] | rows["held"]
    return any(w.lower() in known or w.lower().endswith(_KEY_ENDS) for w in words)


def _all_strings(value: Any, glue: str = "\n") -> Iterator[tuple[str, str]]:
    """Yield every string and what to put after it, so that a name and its value read like an assignment."""
    if isinstance(value, str):
        yield value, glue
    elif isinstance(value, Mapping):
        for key, below in value.items():
            if isinstance(key, str):
                yield key, '": "' if isinstance(below, str) else "\n"
            yield from _all_strings(below, '"\n')
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _all_strings(below)


def _places(parts: Iterable[tuple[str, str]]) -> Iterator[tuple[int, int]]:
    at = 0
    for part, glue in parts:
        yield at, at + len(part)
        at += len(part) + len(glue)


def _is_secret(name: str, value: str, *, anything: bool) -> bool:
    """Decide whether a named value is a secret; `anything` when also names that are not key-like count."""
    if value.lower() in _PLAIN or value.isspace():
        return False
    if is_key_name(name):
        return len(value) >= MIN_NAMED and not value.startswith("/")  # a path to a key file is not the key
    return anything and len(value) >= MIN_ANY and not name.startswith("MSWEA_")


def _env_files(workspace: Path) -> Iterator[Path]:
    """List `.env`, `.env.local`, `prod.env` ... near the top of a workspace; the walk is bounded."""
    level, seen = [workspace], 0
    for _ in range(_MAX_DEPTH + 1):
        below: list[Path] = []
        for directory in level:
            if (seen := seen + 1) > _MAX_DIRS:
                return
            try:
                entries = sorted(os.scandir(directory), key=lambda e: e.name)
            except OSError:
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _SKIP_DIRS and not os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
                        below.append(Path(entry.path))
                elif is_env_file(entry.name):
                    yield Path(entry.path)
        level = below


def is_env_file(name: str) -> bool:
    """Tell whether a file of this name holds environment values (and is not a template to copy)."""
    if not (name == ".env" or name.startswith(".env.") or name.endswith(".env")):
        return False
    return not name.endswith((".example", ".sample", ".template", ".dist"))


def _of_env_file(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = read_regular(path, _MAX_ENV_BYTES, start_only=True).decode("utf-8", "replace")
    except OSError:
        return
    for name, double, single, bare in re.findall(_ASSIGNMENT, text):
        whole = double or single or bare.strip()
        # A bare value may carry a comment, a quoted one escapes and several lines: any reading of it is the secret.
        unescaped = re.sub(_ESCAPE, lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), double)
        for value in {whole, bare.split(" #")[0].strip(), unescaped}:
            for part in {value, *value.split("\n")}:
                if _is_secret(name, part.strip(), anything=True):
                    yield part.strip(), name


def _of_config(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _of_config(below, str(key))
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _of_config(below, name)
    elif isinstance(value, str) and _is_secret(name, value, anything=False):
        yield value, name


def _forms(value: str) -> Iterator[str]:
    """Yield how programs print a value that is too short to be looked for letter by letter, or reads as an escape."""
    escaped = json.dumps(value)[1:-1]
    yield from (value, value.replace("\\", "\\\\"), value[::-1])
    yield from (escaped, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(escaped)[1:-1])
    raw = _bytes(value)
    yield from (quote(raw, safe=""), quote(raw), quote_plus(raw), raw.hex(), raw.hex().upper())
    for core in _aligned(raw, base64.b64encode, 3, 4):
        if len(core) >= MIN_NAMED:
            yield from (core, core.replace("+", "-").replace("/", "_"))


def _codes(value: str) -> Iterator[str]:
    """Yield a value in every code that is looked for; only letters and digits count, in lower case."""
    raw = _bytes(value)
    yield from (value[::-1], codecs.encode(value, "rot13"), value[::2], value[1::2])
    for data in (raw, raw[::-1], value.encode("utf-16-le", "surrogatepass")[:-1]):
        yield data.hex()
        yield from _aligned(data, base64.b64encode, 3, 4)
        yield from _aligned(data, base64.b32encode, 5, 8)
    yield from (raw.hex()[::-1], base64.b64encode(raw).decode()[::-1])
    for encode in (base64.b85encode, base64.a85encode):
        yield from _aligned(raw, encode, 4, 5)
    for data in (raw, b"\0" + raw):  # two bytes as one number, as `od -x` has them
        yield b"".join(data[n : n + 2][::-1] for n in range(len(data) % 2, len(data), 2)).hex()
    for form in ("{}", "{:03o}", "{:08b}", "{:#x}", "{:#o}", "{:#b}", "U{:04X}", "chr{}"):
        yield "".join(map(form.format, raw))
    if len(raw) < 100:
        yield from (str(int.from_bytes(raw, "big")), str(int.from_bytes(raw, "little")))


def _aligned(raw: bytes, encode: Callable[[bytes], bytes], unit: int, width: int) -> Iterator[str]:
    """Yield what a code makes of bytes at every place in its unit, without what their neighbours change."""
    whole = width if unit == 4 else 1  # base85 mixes all the bytes of a unit
    for offset in range(unit):
        first, last = -(-offset * width // (unit * whole)), (offset + len(raw)) * width // (unit * whole)
        yield encode(b"\0" * offset + raw).decode()[first * whole : last * whole]


def _pieces(value: str, label: str) -> Iterator[_Piece]:
    """Yield the forms of a value that are looked for letter by letter; the first is itself."""
    value = value[:_LONGEST]
    part = is_random(value, _FRAGMENT) or bool(re.fullmatch(r"[0-9a-fA-F-]{16,}", value) and len(set(value)) > 5)
    for form in dict.fromkeys((value, Reading(value).text, *_codes(value))):
        if len(small := letters_of(form)) >= _SHORTEST:
            least = max(_FRAGMENT, _SHORTEST * len(small) // len(value)) if part else len(small)
            head, tail = re.match(r"[^A-Za-z0-9]*", form), re.search(r"[^A-Za-z0-9]*\Z", form[-100:])
            yield _Piece(small, label, least, head[0] if head else "", tail[0] if tail else "")


def _bytes(value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")  # as it was in the environment
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
