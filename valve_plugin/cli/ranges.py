"""Options that are rates, chances or differences of rates: what is outside their range is refused, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from valve_plugin.errors import ConfigError, ValveError


def between(low: float, high: float, hint: str, *, ends: str = "[]") -> Callable[[Any], Any]:
    """Return what checks an option's number, or each of several.

    Args:
        hint: what the number is and how it is written.
        ends: which ends belong to the range, as in `(0, 1]`.
    """

    def check(given: Any) -> Any:
        for number in given if isinstance(given, list) else [given]:
            if number is None:
                continue
            above = number > low or (number == low and ends[0] == "[")
            if not (above and (number < high or (number == high and ends[1] == "]"))):  # false for nan, too
                shown = f"{number:g}" if isinstance(number, float) else number
                raise typer.BadParameter(f"{shown} is not in {ends[0]}{low}, {high}{ends[1]}; it is {hint}")
        return given

    return check


_POINTS = "a difference of rates: 5 points are 0.05"
_CHANCE = "a probability: 1 time in 20 is 0.05"

difference = between(-1, 1, _POINTS)
loss = between(0, 1, _POINTS)
tolerable = between(0, 1, _POINTS, ends="(]")
chance = between(0, 1, _CHANCE, ends="()")
rate = between(0, 1, "a solve rate: 75 % are 0.75", ends="()")
noise = between(0, 0.25, "the mean of p(1-p), never above a quarter", ends="(]")

queries = between(1, 100_000, "a number of gate queries")
tasks = between(1, 1_000_000, "a number of tasks")
banks = between(1, 1_000_000, "a number of different banks")
accepts = between(1, 100_000, "a number of accepts")
panel_tasks = between(1, 1000, "a number of panel tasks")
panel_rollouts = between(1, 30, "a number of rollouts per task")
passes = between(0, 30, "a number of passes; 0 guards nothing")

Variance = Annotated[
    float | None,
    typer.Option(
        "--variance",
        metavar="V",
        callback=between(0, 1, "in squared rates: the paper's is 0.025, and none is above 1", ends="(]"),
        help="Bound on the variance of a paired difference, e.g. 0.025; at most 1.",
    ),
]


@contextmanager
def theory_errors() -> Iterator[None]:
    """Turn a value that the theory refuses, and names, into wrong use of the command."""
    try:
        yield
    except ValveError:
        raise
    except ValueError as e:
        raise ConfigError(str(e)) from e


def points(rate: float) -> str:
    """Return a difference of rates in signed points."""
    return f"{100 * rate:+.1f}"
