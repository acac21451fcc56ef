"""The command that resumes a stopped run: the one that was typed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from valve_plugin.errors import InfrastructureError
from valve_plugin.words import join

if TYPE_CHECKING:
    from valve_plugin.bank.local import LocalStore

_START = "start it again"
_NOTE = "run"


def command() -> str:
    """Return the command line of this process, quoted for a shell, without keys; empty if it is not `valve`."""
    from valve_plugin.redact import Redactor

    if os.path.basename(sys.argv[0]) not in ("valve", "__main__.py"):
        return ""
    typed = [word for word in sys.argv[1:] if word != "--new-epoch"]  # by now it is open
    return Redactor.of(os.environ, config=[_assigned(word) for word in typed])(join(["valve", *typed]))


def _assigned(word: str) -> Any:
    """Return what a word like `a.b=VALUE` sets, as nested data; a list within may hold such words again."""
    name, equals, text = word.partition("=")
    value: Any = text
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    if isinstance(value, list):
        value = [[one, _assigned(one)] if isinstance(one, str) else one for one in value]
    return {name.rpartition(".")[2]: value} if equals else None


@contextmanager
def advise_on_stop() -> Iterator[None]:
    """Name the command that resumes the run when a failure or Ctrl-C stops it."""
    again = command()
    advice = _START + (f": {again}" if again else "")
    try:
        yield
    except InfrastructureError as e:
        if _START in str(e):
            raise
        raise InfrastructureError(f"{e}; then {advice}") from e
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(*(e.args or [f"to continue, {advice}"])) from e


def remember(local: LocalStore) -> None:
    """Record the current command: `valve` shows it if the run is stopped."""
    typed = command()
    resumes = not typed.startswith("valve demo")  # which begins anew
    local.remember(_NOTE, f"{os.getcwd()}\n{typed}" if resumes else "")


def recall(local: LocalStore) -> str:
    """Return the last run's command; empty if it was typed in another directory, as its paths may be relative."""
    where, _, typed = local.recall(_NOTE).partition("\n")
    return typed if where == os.getcwd() else ""
