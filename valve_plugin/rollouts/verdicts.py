"""Reading the harness's records: what is not signed in unbroken order does not count. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
import re

from valve_plugin.records import Record

_LINE = re.compile(rb"^@valve ([0-9a-f]{64}) (\{.*\})$", re.MULTILINE)


class Report(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one test run said."""

    started: bool
    """The harness came up; without it the fault is the host's."""
    ended: bool
    """It reached its end by itself."""
    tests: dict[str, str]
    """Test id to passed, failed, skipped or xfailed."""
    forged: str = ""
    """Why the records are not to be believed; empty: they are."""


def read(output: bytes, key: bytes) -> Report:
    """Check and collect the records in a run's output."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    started = ended = False
    tests: dict[str, str] = {}
    forged = ""
    for match in _LINE.finditer(output):
        mac.update(match[2] + b"\n")
        if not hmac.compare_digest(mac.hexdigest().encode(), match[1]):
            forged = "a record in the output was not written by the harness"
            break
        record = json.loads(match[2])
        started |= record.get("event") == "start"
        ended |= record.get("event") == "end"
        if "test" in record:
            if record["test"] in tests:
                forged = f"{record['test']} was reported twice"
            tests[record["test"]] = record["outcome"]
    return Report(started=started, ended=ended and not forged, tests=tests, forged=forged)
