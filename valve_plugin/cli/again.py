"""The command that goes on where a run stopped: the one that was typed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from valve_plugin.errors import InfrastructureError
from valve_plugin.shell_words import join

if TYPE_CHECKING:
    from valve_plugin.config import Settings


def command(settings: Settings) -> str:
    """Return this process's command as a shell takes it, without keys; empty where it is no command of `valve`."""
    from valve_plugin.bank.redact import Redactor

    if os.path.basename(sys.argv[0]) not in ("valve", "__main__.py"):  # somebody else's program
        return ""
    typed = [word for word in sys.argv[1:] if word != "--new-epoch"]  # it is open by now, and again would be another
    return Redactor.of(os.environ, config=settings.model_kwargs)(join(["valve", *typed]))


@contextmanager
def told(settings: Settings) -> Iterator[None]:
    """Say the command with whatever host, provider or Ctrl-C stops the run with."""
    try:
        yield
    except InfrastructureError as e:
        raise InfrastructureError(f"{e}; then {_start(settings)}") from e
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(f"to go on, {_start(settings)}") from e


def _start(settings: Settings) -> str:
    again = command(settings)
    return "start it again" + (f": {again}" if again else "")
