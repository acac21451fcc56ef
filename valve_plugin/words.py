"""Numbers in words, for every layer that says one."""

from __future__ import annotations


def plural(number: int, one: str, many: str = "") -> str:
    """Return `1 task`, `2 tasks`; `many` where adding an s is not enough."""
    return f"{number} {one if number == 1 else many or one + 's'}"
