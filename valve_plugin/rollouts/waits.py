"""Waits before a provider or a host is asked again, told to whoever watches the run.

A rollout waits in a process of its own: it notes each wait in a file, and who awaits the rollout passes it on. Nothing
that decides reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from valve_plugin.bank.redact import Redactor
from valve_plugin.codec import canonical, decode
from valve_plugin.errors import RecordError
from valve_plugin.rollouts.exits import one_line
from valve_plugin.rollouts.faults import Fault

FILE = "waits.jsonl"
_WRAPPERS = re.compile(r"(?:^|(?<=\())(?:(?:litellm\.)?\w+(?:Error|Exception)(?::| -)\s*)+")
"""What client libraries put before a provider's own words."""
_UNTOLD = "Connection error."
"""All that they say of a connection that broke, however it broke."""
_MOST = 160
"""Characters of what was said."""
_DEEPEST = 10
"""Causes of an error that are looked at."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One wait."""

    said: str
    """Why, in one line."""
    tried: int
    """The try that failed."""
    at_most: int
    """Tries there are."""
    seconds: float


Tell = Callable[[Wait], None]

_TELL: ContextVar[Tell | None] = ContextVar("valve_waits_tell", default=None)


@contextmanager
def heard(by: Tell) -> Iterator[None]:
    """Have somebody told about the waits of this thread while the block runs."""
    token = _TELL.set(by)
    try:
        yield
    finally:
        _TELL.reset(token)


def tell(wait: Wait) -> None:
    """Tell whoever hears this thread; nobody may."""
    if by := _TELL.get():
        by(wait)


def said(error: BaseException, found: Fault, model_kwargs: Mapping[str, Any]) -> str:
    """Return what failed at the provider and what a failed call shows of it, without keys."""
    does = {"rate": "the provider asks to slow down", "connection": "the provider cannot be reached"}
    asked = f"the provider asks to wait {found.asked:.0f} s" if found.asked else ""
    return f"{asked or does.get(found.kind, 'the provider fails')} ({shown(error, model_kwargs)})"


def shown(error: BaseException, model_kwargs: Mapping[str, Any]) -> str:
    """Return what a failed call shows of its provider: HTTP status and words, or how the connection broke."""
    redact = Redactor.of(os.environ, config=model_kwargs)
    what = _WRAPPERS.sub("", one_line(redact(str(error)))).strip() or type(error).__name__
    for cause in behind(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if type(cause).__name__ == "HTTPStatusError" and isinstance(status, int):
            words = what.removeprefix(f"Error code: {status}").removeprefix(" - ")
            what = f"HTTP {status}: {words}" if words else f"HTTP {status}"
            break
        if what == _UNTOLD and _UNTOLD not in str(cause):
            what = one_line(redact(str(cause))) or what
    return what if len(what) <= _MOST else f"{what[:_MOST]}..."


def behind(error: BaseException) -> Iterator[BaseException]:
    """Yield what led to an error: client libraries call all that befalls a connection a connection error."""
    cause = error.__cause__ or error.__context__
    for _ in range(_DEEPEST):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def bare(what: str) -> str:
    """Return what was said without the classes that client libraries put before it, also within brackets."""
    return _WRAPPERS.sub("", what).strip() or what


def noting(folder: Path) -> Tell:
    """Return what notes waits in a folder, one line each."""

    def note(wait: Wait) -> None:
        with suppress(OSError), (folder / FILE).open("ab") as file:
            file.write(canonical(wait) + b"\n")

    return note


class Passing:
    """Passes on what another process notes in a folder, once each."""

    def __init__(self, folder: Path) -> None:
        self._path, self._read = folder / FILE, 0

    def __call__(self) -> None:
        """Tell about what was noted since."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return
        self._read += len(whole) + 1 if whole else 0
        for line in whole.split(b"\n") if whole else ():
            with suppress(RecordError):
                tell(decode(line, Wait, where=FILE))
