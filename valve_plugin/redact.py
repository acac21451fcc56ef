"""Take secrets out of what VALVE writes: first by value, then by kinds.

By value is the strong half: whatever the environment, `.env` files or the model's configuration hold under a
key-like name is replaced wherever it appears, also encoded, backwards, in pieces or cut. The kinds (`secret_shapes`)
catch what the process never knew. The time is linear in the text.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from valve_plugin.files import read_regular
from valve_plugin.secret_shapes import Span, find, is_random, table

_LOWER = bytes(range(256)).lower()
_SIGNS = bytes(c for c in range(256) if not chr(c).isalnum() or c > 127)
_IS_SMALL = bytes(c not in _SIGNS for c in range(256))
_FRAGMENT = 11
"""Letters and digits of the shortest part of a known value that is looked for: with eight of them anywhere in it, at
every fourth place, none is missed."""
_LONGEST = 4_000
"""Characters of a known value whose parts are looked for."""
MIN_NAMED = 6
"""Characters of the shortest value that is redacted for its key-like name."""
MIN_ANY = 8
"""Characters of the shortest value of an `.env` file that is redacted whatever its name."""
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
        self._forms: dict[str, str] = {}
        self._windows: dict[int, _Piece] = {}
        for value in sorted(secrets, key=lambda v: (-len(v), v)):
            label = secrets[value]
            for form in _forms(value):
                self._forms.setdefault(form, label)
            for piece in _pieces(value, label):
                for n in range(len(piece.small) - 7):
                    window = int.from_bytes(piece.small[n : n + 8], sys.byteorder)
                    self._windows.setdefault(window, piece._replace(at=n))

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
        return bool(self._spans(data.decode("latin-1"))) or any(_bytes(form) in data for form in self._forms)

    def _spans(self, text: str) -> list[Span]:
        """Return the secrets of a text, in order and apart; of two that overlap the known one names both."""
        known = list(self._spread(text)) if self._windows else []
        for form, label in self._forms.items():  # as it is, or in an encoding
            at = text.find(form)
            while at >= 0:
                known.append((at, at + len(form), label))
                at = text.find(form, at + len(form))
        every = [
            (start, end, rank, label) for rank, found in enumerate((known, find(text))) for start, end, label in found
        ]
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
        """Yield where a known value stands in pieces: with spaces, quotes, colours or line ends in between.

        Only letters and digits count, in lower case. Every eighth byte's number is looked up among those of all
        values, so the time does not depend on how many there are.
        """
        flat = _flat(text)
        small = flat.translate(_LOWER, _SIGNS)
        hits = []
        for first in (0, 4):
            whole = memoryview(small)[first : first + (len(small) - first) // 8 * 8] if len(small) > first + 8 else b""
            numbers = memoryview(whole).cast("Q") if whole else ()
            hits += [(first + 8 * n, number) for n, number in enumerate(numbers) if number in self._windows]
        # Where the letters and digits stand in the text, by their number.
        place = array("Q", compress(range(len(flat)), flat.translate(_IS_SMALL))) if hits else array("Q")
        done = 0
        for at, number in sorted(hits):
            if at >= done:
                piece = self._windows[number]
                start, end = _extend(small, at, piece, done)
                if end - start == len(piece.small) or (piece.random and end - start >= _FRAGMENT):
                    done = end
                    yield place[start], place[end - 1] + 1, piece.label


class _Piece(NamedTuple):
    """One form of a known value, reduced to small letters and digits."""

    small: bytes
    label: str
    random: bool
    """Whether a part of it tells the whole: then parts are replaced too."""
    at: int = 0
    """Where in it the window is."""


def _extend(small: bytes, at: int, piece: _Piece, done: int) -> tuple[int, int]:
    """Return how far a text agrees with a known value around the window that was found at `at`."""
    start, own = at, piece.at
    while own and start > done and small[start - 1] == piece.small[own - 1]:
        start, own = start - 1, own - 1
    end, own = at + 8, piece.at + 8
    while own < len(piece.small) and end < len(small) and small[end] == piece.small[own]:
        end, own = end + 1, own + 1
    return start, end


def _flat(text: str) -> bytes:
    """Return a text as ASCII of the same length, with escapes and colours blank."""
    flat = text.encode("ascii", "replace")
    if b"\x1b" in flat:
        flat = re.sub(rb"\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]", lambda m: b" " * len(m[0]), flat)
    for escape in (b"\\n", b"\\r", b"\\t", b"\\x", b"\\u00", b"0x", b"0X"):
        flat = flat.replace(escape, b" " * len(escape))
    return flat


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
    """Yield how programs print a value: raw, backwards, escaped as in Python and JSON, in a URL, in hex, in base64."""
    escaped = json.dumps(value)[1:-1]
    yield from (value, value.replace("\\", "\\\\"), value[::-1])
    yield from (escaped, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(escaped)[1:-1])
    raw = _bytes(value)
    yield from (quote(raw, safe=""), quote(raw), quote_plus(raw), raw.hex(), raw.hex().upper(), raw[::-1].hex())
    for offset in range(3):  # what base64 makes at the places of a triple, without what neighbours change
        text = base64.b64encode(b"\0" * offset + raw).rstrip(b"=").decode()
        core = text[(0, 2, 3)[offset] : len(text) - (1 if (offset + len(raw)) % 3 else 0)]
        if len(core) >= MIN_NAMED:
            yield from (core, core.replace("+", "-").replace("/", "_"))


def _pieces(value: str, label: str) -> Iterator[_Piece]:
    """Yield the forms of a value that may stand in pieces, from the longest value on."""
    for form in dict.fromkeys(_forms(value[:_LONGEST])):
        small = _flat(form).translate(_LOWER, _SIGNS)
        if len(small) >= _FRAGMENT:
            yield _Piece(small, label, is_random(form, _FRAGMENT))


def _bytes(value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")  # as it was in the environment
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
