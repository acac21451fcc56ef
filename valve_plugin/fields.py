"""What fields of records hold, each with its range, and the base of all records."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Kind = Literal["principle", "skill"]
KINDS: tuple[Kind, ...] = ("principle", "skill")
Outcome = Literal["resolved", "unresolved", "errored"]
AttemptOutcome = Literal["resolved", "unresolved", "errored", "ungraded"]
FaultKind = Literal["", "key", "quota", "model", "price", "request", "rate", "server", "connection"]
Decision = Literal["accept", "reject", "indecisive"]
Pairing = Literal["paper", "deployed"]
Source = Literal["evolve", "panel", "eval"]
"""What an unattended rollout is for: to learn from, to judge by, or to evaluate on the sealed holdout."""

# Limits of what a model may put into a bank; generous for real items, small enough for a prompt.
# The lookahead: in Python `$` also matches before a final newline, in JSON Schema's dialect it does not.
Name = Annotated[str, Meta(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$(?!\n)")]
Sentence = Annotated[str, Meta(min_length=1, max_length=600)]
Body = Annotated[str, Meta(min_length=1, max_length=12_000)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", min_length=64, max_length=64)]
Money = Annotated[float, Meta(ge=0)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records."""
