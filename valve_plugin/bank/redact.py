"""Take secrets out of what VALVE writes: first by value, then by known key formats.

By value is the strong half: whatever the environment, `.env` files or the model's configuration hold under a
key-like name is replaced wherever it appears, also JSON-escaped, URL-quoted or inside base64. Formats catch what
the process never knew, such as a key printed by a command. Plain words and git hashes are left alone.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from valve_plugin.bank.key_formats import FORMATS, Format, find, possible
from valve_plugin.reading import regular

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
_KEY_WORDS = frozenset((
    "key", "keys", "apikey", "apikeys", "token", "tokens", "secret", "secrets", "password", "passwords", "passwd",
    "passphrase", "pwd", "pass", "credential", "credentials", "auth", "authorization", "cookie", "dsn", "pat",
    "bearer", "webhook", "salt",
))
# fmt: on
_KEY_ENDS = ("apikey", "token", "secret", "password", "passwd")
# Compiled on first use, as the formats below are: most processes never meet the text they are for.
_ASSIGNMENT = (
    r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_][\w.]*)[ \t]*[=:][ \t]*"
    r"(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\r\n]*))"
)
_ESCAPE = r"(?s)\\(.)"


class Redactor:
    """The secrets of one process and workspace, ready to be replaced in any number of texts."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Take secret value -> label, for example {"hunter22": "DB_PASSWORD"}."""
        needles: dict[str, str] = {}
        for value in sorted(secrets, key=lambda v: (-len(v), v)):
            for form in _forms(value):
                needles.setdefault(form, f"[redacted:{secrets[value]}]")
        # Longest first, so that a secret inside another one never leaves the outer one's ends behind.
        self._needles = sorted(needles.items(), key=lambda pair: -len(pair[0]))
        self._formats: Sequence[Format] = FORMATS

    @classmethod
    def of(cls, environ: Mapping[str, str], workspace: Path | None = None, config: Any = None) -> Redactor:
        """Return a redactor of all that `gather` finds."""
        return cls(gather(environ, workspace, config))

    def __call__(self, text: str) -> str:
        """Return the text with every secret replaced by `[redacted:<what>]`."""
        for needle, label in self._needles:
            if needle in text:
                text = text.replace(needle, label)
        for label, _, pattern in possible(self._formats, text):
            text = re.sub(pattern, partial(_replacement, f"[redacted:{label}]"), text)
        return text

    def tree(self, value: Any) -> Any:
        """Redact every string of nested plain data, keys included."""
        every = "\0".join(_strings(value))
        # Whatever does not occur in all the strings together need not be looked for in each.
        narrowed = Redactor({})
        narrowed._needles = [(needle, label) for needle, label in self._needles if needle in every]
        narrowed._formats = possible(self._formats, every)
        return narrowed._walk(value)

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(k) if isinstance(k, str) else k: self._walk(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._walk(v) for v in value]
        return value

    def shown(self, value: object) -> str:
        """Return the redacted text of an object that has no other form."""
        return self(str(value))

    def leaks(self, data: bytes) -> bool:
        """Tell whether binary data holds a secret: such a file cannot be redacted, only left out."""
        return any(_bytes(needle) in data for needle, _ in self._needles) or bool(find(data.decode("latin-1")))


def gather(environ: Mapping[str, str], workspace: Path | None = None, config: Any = None) -> dict[str, str]:
    """Return secret value -> where it is from.

    Args:
        environ: environment variables; values under key-like names count, and passwords inside URLs.
        workspace: a directory whose `.env` files are read, three levels deep; None reads only mini's own.
        config: nested plain data (mini's model configuration); strings under key-like names count.
    """
    found: dict[str, str] = {}
    for path in [_mini_env_file(environ), *(_env_files(workspace) if workspace else ())]:
        found.update(_of_env_file(path))
    found.update(_of_config(config))
    found.update(_of_environ(environ))
    return found


def redact(text: str, environ: Mapping[str, str], workspace: Path | None = None) -> str:
    """Redact one text; build a `Redactor` where there are several."""
    return Redactor.of(environ, workspace)(text)


@lru_cache(maxsize=4096)
def key_like(name: str) -> bool:
    """Tell whether a variable or setting of this name usually holds a secret (API_KEY, dbPassword, GH_TOKEN)."""
    if name in ("PWD", "OLDPWD"):  # the working directory
        return False
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return any(w.lower() in _KEY_WORDS or w.lower().endswith(_KEY_ENDS) for w in words)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from _strings(key)
            yield from _strings(below)
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _strings(below)


def _replacement(label: str, match: re.Match[str]) -> str:
    if not match.re.groups:
        return label
    start, end = match.span(1)
    return match.string[match.start() : start] + label + match.string[end : match.end()]


def _secret(name: str, value: str, *, anything: bool) -> bool:
    """Decide whether a named value is a secret; `anything` when also names that are not key-like count."""
    if value.lower() in _PLAIN or value.isspace():
        return False
    if key_like(name):
        return len(value) >= MIN_NAMED and not value.startswith("/")  # a path to a key file is not the key
    return anything and len(value) >= MIN_ANY and not name.startswith("MSWEA_")


def _of_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        if _secret(name, value.strip(), anything=False):
            yield value.strip(), name
        elif "://" in value and (m := re.search(r"://[^\s/:@]*:([^\s/@]{4,})@", value)):
            yield m[1], name


def _mini_env_file(environ: Mapping[str, str]) -> Path:
    from platformdirs import user_config_path

    return Path(environ.get("MSWEA_GLOBAL_CONFIG_DIR") or user_config_path("mini-swe-agent")) / ".env"


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
        text = regular(path, _MAX_ENV_BYTES, start_only=True).decode("utf-8", "replace")
    except OSError:
        return
    for name, double, single, bare in re.findall(_ASSIGNMENT, text):
        whole = double or single or bare.strip()
        # A bare value may carry a comment, a quoted one escapes and several lines: any reading of it is the secret.
        for value in {whole, bare.split(" #")[0].strip(), re.sub(_ESCAPE, _unescaped, double)}:
            for part in {value, *value.split("\n")}:
                if _secret(name, part.strip(), anything=True):
                    yield part.strip(), name


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t", "r": "\r"}.get(match[1], match[1])


def _of_config(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _of_config(below, str(key))
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _of_config(below, name)
    elif isinstance(value, str) and _secret(name, value, anything=False):
        yield value, name


def _forms(value: str) -> Iterator[str]:
    """Yield how a value looks raw, as Python and JSON (once and twice) escape it, URL-quoted, and inside base64."""
    yield value
    yield value.replace("\\", "\\\\")
    escaped = json.dumps(value)[1:-1]
    yield from (escaped, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(escaped)[1:-1])
    yield from (quote(_bytes(value), safe=""), quote(_bytes(value)), quote_plus(_bytes(value)))
    raw = _bytes(value)
    for offset in range(3):
        # Characters that also encode neighbouring bytes differ from text to text: keep the ones that cannot.
        text = base64.b64encode(b"\0" * offset + raw).rstrip(b"=").decode()
        core = text[(0, 2, 3)[offset] : len(text) - (1 if (offset + len(raw)) % 3 else 0)]
        if len(core) >= MIN_NAMED:
            yield core
            yield core.replace("+", "-").replace("/", "_")


def _bytes(value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")  # as it was in the environment
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
