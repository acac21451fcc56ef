"""Numbers in words."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 skill`, `2 skills`; `many` where adding an s is not enough."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def points(rate: float) -> str:
    """Return a rate difference in points: `+3.1 points`."""
    return f"{100 * rate:+.1f} points"
