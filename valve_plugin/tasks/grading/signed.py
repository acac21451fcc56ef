"""Runs inside the sandbox: writes records that no other output can pass for. A script of the standard library only."""

from __future__ import annotations

import fcntl
import hashlib
import json.encoder
import os
import threading
from typing import Any

# Bound now, because tests may replace them in their modules.
_write, _quote_ascii = os.write, json.encoder.encode_basestring_ascii


class Report:
    """Writes records to the original output. A signature covers all records so far, so output cannot pass for one."""

    def __init__(self, key: bytes) -> None:
        self._chain, self._lock = hashlib.blake2b(key=key), threading.Lock()
        self._fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 200)  # those that code opens begin where they always do

    def record(self, **members: Any) -> None:
        """Write one record; only strings, lists of them and booleans."""
        body = ("{" + ",".join(f"{quote(name)}:{encoded(value)}" for name, value in members.items()) + "}").encode()
        with self._lock:
            self._chain.update(body + b"\n")
            _write(self._fd, b"\n@valve " + self._chain.copy().hexdigest().encode() + b" " + body + b"\n")

    def explain(self, test: str, message: str, place: str, line: str = "") -> None:
        """Write why a test failed, for people and models to read; unsigned, because no verdict depends on it."""
        values = {
            "test": str(test)[:500],
            "message": str(message)[:1000],
            "place": str(place)[:500],
            "line": str(line)[:500],
        }
        body = ",".join(f'"{name}":{quote(value)}' for name, value in values.items())
        _write(self._fd, f"\n@reason {{{body}}}\n".encode())


def quote(text: str) -> str:
    """Return a text as JSON; half characters, which no reader takes, by their numbers."""
    return _quote_ascii(text.encode("utf-8", "backslashreplace").decode())


def encoded(value: Any) -> str:
    """Return a value as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{','.join(map(quote, value))}]" if isinstance(value, list) else quote(value)
