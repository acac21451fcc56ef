"""What to do with an error that nobody foresaw in one attempt: it ends that attempt, and can be found afterwards."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from valve_plugin.bank.paths import data_dir
from valve_plugin.rollouts.exits import one_line

_NAME = "defects.log"
_MOST_BYTES = 1_000_000


def noted(error: Exception, about: str, redact: Callable[[str], str]) -> str:
    """Append an error's traceback to `defects.log` in the user data directory; return the error in one line.

    Args:
        about: what was going on.
        redact: takes secrets out of a text.
    """
    lines = "".join(traceback.format_exception(error))
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with suppress(OSError):
        path = data_dir() / _NAME
        full = path.exists() and path.stat().st_size > _MOST_BYTES
        with path.open("w" if full else "a", encoding="utf-8", errors="replace") as file:
            file.write(redact(f"{when} {about}\n{lines}\n"))
    said = one_line(redact(f"{type(error).__name__}: {error}"))[:200]
    return f"{said} (a defect; its traceback is in {_NAME} of the user data directory, please report it)"
