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

FILE = "waits.jsonl"
_WRAPPERS = re.compile(r"(?:^|(?<=\())(?:(?:litellm\.)?\w+(?:Error|Exception)(?::| -)\s*)+")
"""What client libraries put before a provider's own words."""
_MOST = 160
"""Characters of what was said."""


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


def said(error: BaseException, asked: float | None, model_kwargs: Mapping[str, Any]) -> str:
    """Return what a failed call shows of its provider, without keys."""
    what = one_line(Redactor.of(os.environ, config=model_kwargs)(str(error)))
    what = bare(what) or type(error).__name__
    what = what if len(what) <= _MOST else f"{what[:_MOST]}..."
    does = "the provider does not answer" if asked is None else f"the provider asks to wait {asked:.0f} s"
    return f"{does} ({what})"


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
