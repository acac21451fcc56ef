"""A curve in plain characters, for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

SAME = "="
"""Marks a point that several series share."""


def running_share(passed: Sequence[int], of: Sequence[int]) -> list[float]:
    """Return, after each task, the share of all rollouts so far that passed.

    Args:
        passed: resolved rollouts of each task, in order.
        of: rollouts of each task, at least one.
    """
    return [p / n for p, n in zip(accumulate(passed), accumulate(of), strict=True)]


def curve(series: Mapping[str, Sequence[float]], *, height: int = 8, width: int = 3) -> list[str]:
    """Return the lines of a chart: one column a point, percent on the left, one mark a series.

    Args:
        series: mark (one character) -> points in [0, 1]. They may be of different lengths.
        height: rows; the scale is what the points span, in steps of ten percent.
        width: characters a column.
    """
    points = [p for values in series.values() for p in values]
    if not points:
        return []
    low, high = int(min(points) * 10) / 10, -int(-max(points) * 10 // 1) / 10
    high = max(high, low + 0.1)
    rows = [[" "] * max(map(len, series.values())) for _ in range(height)]
    for mark, values in series.items():
        for x, value in enumerate(values):
            y = height - 1 - round((value - low) / (high - low) * (height - 1))
            rows[y][x] = mark if rows[y][x] == " " else SAME
    labels = {0: high, height - 1: low}
    lines = []
    for y, row in enumerate(rows):
        label = f"{100 * labels[y]:3.0f} %" if y in labels else ""
        lines.append(f"{label:>5} |" + "".join(f"{mark:^{width}}" for mark in row).rstrip())
    return [*lines, "      +" + "-" * (width * len(rows[0]))]
