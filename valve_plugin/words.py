"""Numbers in words, for every layer that says one."""

from __future__ import annotations

import time


def plural(number: int, one: str, many: str = "") -> str:
    """Return `1 task`, `2 tasks`; `many` where adding an s is not enough."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def moment(seconds: float, *, local: bool = False) -> str:
    """Return a time since the epoch to read, in UTC and saying so, or in this machine's time zone; 0: `unknown`."""
    try:
        parts = time.localtime(seconds) if local else time.gmtime(seconds)
    except (OverflowError, ValueError, OSError):  # a record that no clock wrote
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M", parts) + ("" if local else " UTC") if seconds else "unknown"
