"""The command that goes on where a run stopped: the one that was typed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from valve_plugin.errors import InfrastructureError
from valve_plugin.shell_words import join

if TYPE_CHECKING:
    from types import FrameType

    from valve_plugin.bank.local import LocalStore
    from valve_plugin.config import Settings

_START = "start it again"
_NOTE = "run"


def command(settings: Settings) -> str:
    """Return this process's command as a shell takes it, without keys; empty where it is no command of `valve`."""
    from valve_plugin.bank.redact import Redactor

    if os.path.basename(sys.argv[0]) not in ("valve", "__main__.py"):  # somebody else's program
        return ""
    typed = [word for word in sys.argv[1:] if word != "--new-epoch"]  # it is open by now, and again would be another
    return Redactor.of(os.environ, config=settings.model_kwargs)(join(["valve", *typed]))


@contextmanager
def told(settings: Settings | None = None) -> Iterator[None]:
    """Say the command, once, with whatever host, provider or Ctrl-C stops the run with.

    Args:
        settings: whose keys the command must not show; None where it takes no settings.
    """
    try:
        with _last_line(settings):
            yield
    except InfrastructureError as e:
        if _START in str(e):
            raise
        raise InfrastructureError(f"{e}; then {_start(settings)}") from e
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(*(e.args or [f"to go on, {_start(settings)}"])) from e


@contextmanager
def _last_line(settings: Settings | None) -> Iterator[None]:
    """Let SIGTERM, which ends the process as ever, leave a line first; where nobody else handles it."""
    owner = os.getpid()

    def end(signum: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            told = f"valve: terminated; what was acknowledged is kept; to go on, {_start(settings)}\n"
            os.write(2, told.encode(errors="replace"))  # past what a signal may have interrupted
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def remember(local: LocalStore, settings: Settings) -> None:
    """Keep the command that runs now, for `valve` to advise it where it was interrupted."""
    typed = command(settings)
    goes_on = not typed.startswith("valve demo")  # which starts from nothing
    local.remember(_NOTE, f"{os.getcwd()}\n{typed}" if goes_on else "")


def recall(local: LocalStore) -> str:
    """Return the last run's command; empty where it was typed in another directory, whose paths it may name."""
    where, _, typed = local.recall(_NOTE).partition("\n")
    return typed if where == os.getcwd() else ""


def _start(settings: Settings | None) -> str:
    from valve_plugin.config import Settings as Default

    again = command(settings or Default())
    return _START + (f": {again}" if again else "")
