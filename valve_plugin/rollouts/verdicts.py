"""Reading the harness's records: what is not signed in unbroken order does not count. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Literal

from valve_plugin import codec
from valve_plugin.errors import RecordError
from valve_plugin.records import Record

_LINE = re.compile(rb"^@valve ([0-9a-f]{128}) (\{.*\})$", re.MULTILINE)
_PHASES = ("setup", "call", "teardown")


class Message(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One signed line; which fields are set tells what it says."""

    event: Literal["", "start", "end"] = ""
    tampered: str = ""
    test: str = ""
    when: Literal["", "setup", "call", "teardown", "part"] = ""
    """`part`: a subTest of it failed; there may be many."""
    outcome: str = ""
    raised: bool = False


class Report(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one test run said."""

    started: bool
    """The harness came up; without it the fault is the host's."""
    ended: bool
    """It reached its end by itself."""
    tests: dict[str, str]
    """Test id to passed, failed, skipped or xfailed."""
    tampered: str = ""
    """Why the records are not to be believed; empty: they are."""


def read(output: bytes, key: bytes) -> Report:
    """Check and collect the records in a run's output."""
    messages, tampered = _signed(output, key)
    phases: dict[str, list[Message]] = {}
    for message in messages:
        if message.test:
            phases.setdefault(message.test, []).append(message)
    events = {message.event for message in messages}
    whole = {test: [p.when for p in parts if p.when != "part"] for test, parts in phases.items()}
    twice = [test for test, parts in whole.items() if len(set(parts)) != len(parts)]
    return Report(
        started="start" in events,
        ended="end" in events,
        tests={test: verdict(parts) for test, parts in phases.items()},
        tampered=tampered
        or next((m.tampered for m in messages if m.tampered), "")
        or (f"{twice[0]} was reported twice" if twice else ""),
    )


def verdict(parts: list[Message]) -> str:
    """Combine the phases of one test; passed means that all three were passed without an exception."""
    outcomes = {part.outcome for part in parts}
    if outcomes == {"passed"} and tuple(p.when for p in parts) == _PHASES and not any(p.raised for p in parts):
        return "passed"
    if "failed" not in outcomes and parts[-1].when == "teardown":
        return next((known for known in ("xfailed", "skipped") if known in outcomes), "failed")
    return "failed"


def _signed(output: bytes, key: bytes) -> tuple[list[Message], str]:
    """Return (messages whose signatures continue the chain, why reading stopped; empty: it did not)."""
    chain = hashlib.blake2b(key=key)
    messages: list[Message] = []
    for match in _LINE.finditer(output):
        chain.update(match[2] + b"\n")
        if not hmac.compare_digest(chain.copy().hexdigest().encode(), match[1]):
            return messages, "the output holds a record that the harness did not write"
        try:
            messages.append(codec.decode(match[2], Message, where="record"))
        except RecordError as e:
            return messages, str(e)
    return messages, ""
