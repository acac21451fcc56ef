"""How a run of the agent ended: a patch to grade, the agent's own failure, or the infrastructure's. Pure.

A context that is too long, a budget that ran out or a reply without a command are what a bad bank causes, so they
count against it. What the host or the provider did counts for nothing and is retried.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from valve_plugin.records import AttemptOutcome

Ended = Literal["submitted", "unresolved", "errored"]

_AGENT_STATUS = {
    "LimitsExceeded": "the budget of steps or cost is used up",
    "TimeExceeded": "the agent's time limit is used up",
    "RepeatedFormatError": "replies without a usable command",
}
_AGENT_ERRORS = {
    "ContextWindowExceededError": "the conversation does not fit the model's context window",
    "ContentPolicyViolationError": "the provider refused the conversation's content",
}
# Providers behind gateways report an overflow as a plain bad request.
_OVERFLOW = (
    r"(?i)context[ _-]?(?:window|length)|maximum context|prompt is too long|input is too long"
    r"|too many (?:input )?tokens|exceeds? the (?:maximum|model's|available) (?:number of tokens|context)"
)
_LINE = 300


class Graded(NamedTuple):
    """What the check says about one attempt."""

    outcome: AttemptOutcome
    reason: str
    """In one line, also when it is resolved."""
    dropped_paths: tuple[str, ...] = ()
    """Changed paths that belong to the tests: they were graded as they were before."""
    output: str = ""
    """What the check printed last, in the run that decided; not redacted."""


def classify(exit_status: str, error: Sequence[str] = (), message: str = "") -> tuple[Ended, str]:
    """Return how a rollout ended and why, in one line.

    Args:
        exit_status: mini's exit status; empty when the agent did not end by itself.
        error: names of the exception's class and of its bases, most specific first; empty: none was raised.
        message: the exception's text.

    Returns:
        "submitted" (a patch to grade), "unresolved" (the agent's or its context's doing) or "errored".
    """
    if error:
        for name in error:
            if name in _AGENT_ERRORS:
                return "unresolved", one_line(f"{_AGENT_ERRORS[name]}: {message}")
        if "BadRequestError" in error and re.search(_OVERFLOW, message):
            return "unresolved", one_line(f"{_AGENT_ERRORS['ContextWindowExceededError']}: {message}")
        return "errored", one_line(f"{error[0]}: {message}")
    if exit_status == "Submitted":
        return "submitted", ""
    if exit_status in _AGENT_STATUS:
        return "unresolved", _AGENT_STATUS[exit_status]
    return "errored", one_line(f"the agent stopped with {exit_status or 'no exit status'}")


def one_line(text: str) -> str:
    """Return text as one line of at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _LINE else line[: _LINE - 1] + "…"
