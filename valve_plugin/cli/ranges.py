"""Options that are numbers, with the range of each; a value outside is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from valve_plugin.errors import ConfigError, ValveError

Real = float | None
Count = int | None


def between(low: float, high: float, hint: str, *, ends: str = "[]") -> Callable[[str, str, str], Any]:
    """Return a function that makes an option for a number, or a list of numbers, in a range.

    Args:
        hint: what the number means and how it is written.
        ends: whether each end belongs to the range, as in `(0, 1]`.
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

    def make(name: str, metavar: str, text: str) -> Any:
        return typer.Option(name, metavar=metavar, callback=check, help=text)

    return make


_POINTS = "a difference of rates: 5 points are 0.05"

difference = between(-1, 1, _POINTS)
loss = between(0, 1, _POINTS)
tolerable = between(0, 1, _POINTS, ends="(]")
chance = between(0, 1, "a probability: 1 time in 20 is 0.05", ends="()")
rate = between(0, 1, "a solve rate: 75 % are 0.75", ends="()")
noise = between(0, 0.25, "the mean of p(1-p), never above a quarter", ends="(]")
spread = between(0, 1, "in squared rates: the paper's is 0.025, and none is above 1", ends="(]")
queries = between(1, 100_000, "a number of gate queries")
tasks = between(1, 1_000_000, "a number of tasks")
banks = between(1, 1_000_000, "a number of different banks")
accepts = between(1, 100_000, "a number of accepts")
panel_tasks = between(1, 1000, "a number of panel tasks")
per_task = between(1, 30, "a number of rollouts per task")
useless = between(0, 1000, "a number of accepts that do not help, in expectation; 0 limits nothing")
share = between(0, 1, "a share of the panel's tasks", ends="(]")
passes = between(0, 30, "a number of passes; 0 guards nothing")

Variance = Annotated[Real, spread("--variance", "V", "Bound on the variance of a paired difference, e.g. 0.025.")]


@contextmanager
def theory_errors() -> Iterator[None]:
    """Turn a ValueError of the theory, which names the value, into a ConfigError."""
    try:
        yield
    except ValveError:
        raise
    except ValueError as e:
        raise ConfigError(str(e)) from e


def points(rate: float) -> str:
    """Return a difference of rates in signed points."""
    return f"{100 * rate:+.1f}"
