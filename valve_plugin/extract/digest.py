"""Trajectory digests: what an attempt did, in order, within a token budget, whatever its commands printed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from valve_plugin.codec import decode
from valve_plugin.errors import RecordError
from valve_plugin.records import Attempt

BYTES_PER_TOKEN = 3
"""On the safe side: code and English take three to four UTF-8 bytes a token, other scripts two to three."""
DEFAULT_TOKENS = 6_000
_OUTPUT_LIMITS = (2_000, 800, 300, 120, 0)
"""Characters kept of each command's output, tried in turn until the whole fits."""
_COMMAND_LIMIT, _THOUGHT_LIMIT, _LINE_LIMIT = 1_200, 500, 400
_PATCH_SHARE, _REASON_LIMIT = 4, 500

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Step(NamedTuple):
    """One turn of the agent."""

    thought: str
    commands: tuple[str, ...]
    outputs: tuple[str, ...]


class Told(NamedTuple):
    """A digest, and what of the attempt is in it."""

    text: str
    steps: int
    """Of the attempt."""
    left_out: range
    """Numbers of the steps that the text does not show, from 1."""


def digest(trajectory: bytes | str, attempt: Attempt, *, tokens: int = DEFAULT_TOKENS) -> str:
    """Return a digest of one attempt: its steps, its patch and how the tests judged it.

    Commands are kept before outputs, and beginning and end before the middle: first outputs are cut shorter
    and shorter, then middle steps are left out and counted.

    Args:
        trajectory: mini's trajectory JSON; other text is taken as one transcript.
        attempt: its patch and outcome.
        tokens: budget, estimated from UTF-8 bytes.
    """
    return told(trajectory, attempt, tokens=tokens).text


def told(trajectory: bytes | str, attempt: Attempt, *, tokens: int = DEFAULT_TOKENS) -> Told:
    """Return what `digest` does, and which steps it shows."""
    budget = tokens * BYTES_PER_TOKEN
    ending = _ending(attempt, budget // _PATCH_SHARE)
    left = budget - _size(ending)
    turns = steps(trajectory)
    for limit in _OUTPUT_LIMITS:
        shown = [show(number, step, limit) for number, step in enumerate(turns, 1)]
        if sum(map(_size, shown)) <= left:
            return Told("".join(shown) + ending, len(turns), range(0))
    text, left_out = _ends(shown, left)
    return Told(text + ending, len(turns), left_out)


def clip(text: str, limit: int) -> str:
    """Return `text` within `limit` characters: its head and its tail, and how much was left out between."""
    if len(text) <= limit:
        return text
    if limit < 40:
        return f"[{len(text)} characters]"
    half = (limit - 30) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def readable(text: str, limit: int) -> str:
    """Return printable text within `limit`: no escape sequences, no control characters, no endless lines."""
    # Only what can survive is looked at, so that 50 MB cost what 50 kB cost.
    head = text if len(text) <= 20 * limit else text[: 10 * limit] + "\n" + text[-10 * limit :]
    plain = _ESCAPES.sub("", head)
    unseen = len(_UNSEEN.findall(plain))
    if unseen * 10 > len(plain):
        return f"[binary, {len(text)} characters]"
    lines = (clip(line, _LINE_LIMIT) for line in _UNSEEN.sub("", plain).splitlines())
    return clip("\n".join(lines).strip("\n"), limit)


def steps(trajectory: bytes | str) -> list[Step]:
    """Return the turns of mini's trajectory JSON; other text is one turn."""
    text = trajectory.decode("utf-8", "replace") if isinstance(trajectory, bytes) else trajectory
    try:
        document: Any = decode(text, object, where="trajectory")
        messages = document["messages"]
        return _turns([m for m in messages if isinstance(m, dict)])
    except (RecordError, UnicodeError, KeyError, TypeError):
        return [Step(thought="", commands=(), outputs=(text,))] if text else []


def _turns(messages: Sequence[dict[str, Any]]) -> list[Step]:
    """Group messages into turns of the assistant and what followed; the prompt before them is known already."""
    steps: list[Step] = []
    for message in messages:
        extra = message.get("extra") if isinstance(message.get("extra"), dict) else {}
        assert isinstance(extra, dict)
        if message.get("role") == "assistant":
            steps.append(Step(_text(message.get("content")), _commands(message, extra), ()))
        elif steps and message.get("role") != "exit":
            output = _text(extra.get("raw_output", message.get("content")))
            if extra.get("returncode") is not None:
                output = f"[exit status {extra['returncode']}]\n{output}"
            steps[-1] = steps[-1]._replace(outputs=(*steps[-1].outputs, output))
    return steps


def _commands(message: dict[str, Any], extra: dict[str, Any]) -> tuple[str, ...]:
    actions = extra.get("actions")
    if isinstance(actions, list):
        return tuple(_text(a.get("command")) for a in actions if isinstance(a, dict))
    calls = message.get("tool_calls")  # a turn whose call did not parse: show it as it was written
    return tuple(_text(c.get("function")) for c in calls if isinstance(c, dict)) if isinstance(calls, list) else ()


def _text(value: object) -> str:
    """Return a message's content as text; models and providers also send lists of parts, or nothing."""
    if isinstance(value, str) or value is None:
        return value or ""
    if isinstance(value, list):
        return "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in value)
    return json.dumps(value, default=str)


def show(number: int, step: Step, output_limit: int) -> str:
    """Return one step in words, ending with an empty line; its outputs are cut to so many characters."""
    parts = [f"Step {number}"]
    if step.thought.strip():
        parts.append(readable(step.thought, _THOUGHT_LIMIT))
    outputs = [*step.outputs, *[""] * (len(step.commands) - len(step.outputs))]
    commands = [*step.commands, *[""] * (len(outputs) - len(step.commands))]
    for command, output in zip(commands, outputs, strict=True):
        if command:
            parts.append("$ " + readable(command, _COMMAND_LIMIT))
        if output:
            parts.append(readable(output, output_limit))
    return "\n".join(parts) + "\n\n"


def _ends(shown: Sequence[str], budget: int) -> tuple[str, range]:
    """Return as many first and last steps as fit, alternating, and which were left out between."""
    left, head, tail = budget - 60, 0, len(shown)
    while head < tail:
        at_head = head <= len(shown) - tail
        step = shown[head] if at_head else shown[tail - 1]
        if _size(step) > left:
            break
        left -= _size(step)
        head, tail = (head + 1, tail) if at_head else (head, tail - 1)
    middle = f"[... {tail - head} steps left out ...]\n\n" if tail > head else ""
    return "".join(shown[:head]) + middle + "".join(shown[tail:]), range(head + 1, tail + 1)


def _ending(attempt: Attempt, patch_budget: int) -> str:
    scale = max(1, _size(attempt.patch)) / max(1, len(attempt.patch))  # bytes a character
    patch = readable(attempt.patch, int(patch_budget / scale)) if attempt.patch.strip() else "(no change)"
    result = f"{attempt.outcome}" + (f": {readable(attempt.reason, _REASON_LIMIT)}" if attempt.reason else "")
    dropped = f"\nDropped before grading: {', '.join(attempt.dropped_paths)}" if attempt.dropped_paths else ""
    return f"Final patch:\n{patch}{dropped}\n\nFinal result: {result}\n"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
