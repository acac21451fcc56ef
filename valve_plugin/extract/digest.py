"""Trajectory digests: what an attempt did, in order, within a token budget, whatever its commands printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from valve_plugin.codec import decode
from valve_plugin.errors import RecordError
from valve_plugin.records import Attempt
from valve_plugin.tasks.syntax import patch_changes

BYTES_PER_TOKEN = 3
"""On the safe side: code and English take three to four UTF-8 bytes a token, other scripts two to three."""
DEFAULT_TOKENS = 4_000
"""Of one attempt; see the setting `digest_tokens`, which is for all attempts at a task."""
_LEVELS = (
    (2_000, 2_000, 6_000, 500, 1_200),
    (500, 2_000, 6_000, 500, 1_200),
    (120, 1_000, 6_000, 400, 1_200),
    (0, 300, 5_000, 250, 1_000),
    (0, 0, 4_000, 120, 800),
    (0, 0, 2_000, 60, 400),
    (0, 0, 1_000, 0, 250),
)
"""Tried in turn until the whole fits: characters kept of a listing, of another output, of what must survive, of a
thought, and of a command."""
_LINE_LIMIT = 400
_MISSING = 6
"""Lines shown of what a failing attempt lacks."""
_REASON_LIMIT, _CHECK_LIMIT = 500, 2_000

_START = r"(?:^|[;&|(]\s*|\n\s*)(?:[A-Z_]+=\S+\s+)*(?:time\s+|timeout\s+\S+\s+)?(?:cd\s+\S+\s*(?:&&|;)\s*)?"
_PYTHON = r"\S*python[\d.]*\s+"
_TESTS = re.compile(
    rf"{_START}(?:{_PYTHON}(?:-\w+\s+)*-m\s+)?(?:py\.?test|unittest|tox|nox|make\s+\w*(?:test|check)"
    r"|(?:npm|yarn|pnpm|cargo|go|mvn|gradle)\s+(?:run\s+)?test)\b"
)
_EDITS = re.compile(
    rf"{_START}(?:(?:sed|perl)\s+(?:-\S+\s+)*-\w*i|git\s+(?:apply|checkout|restore|revert|stash)"
    r"|patch|apply_patch|ed|tee|mv|cp|rm)\b"
    r"|(?<![<>=\d&-])>{1,2}\s*(?!/dev/|/tmp/)[\w./~$\"']|\.write_text\(|\.write\(|open\([^)\n]{1,200},\s*['\"][wa]"
)
_OWN_CHECK = re.compile(rf"{_START}(?:{_PYTHON}(?:-c\b|-\s|-?\s*<<|\S+\.py\b)|node\s|bash\s+\S+\.sh|\./\S+)")
_LISTING = re.compile(
    rf"{_START}(?:cat|head|tail|nl|sed\s+-n|ls|find|tree|grep|rg|awk|wc|git\s+(?:show|diff|log|grep|status))\b"
)
_LOOKED_AT = 4_000
"""Characters of a command that say what it does."""
_TRACEBACK = re.compile(r"^(?:Traceback \(most recent call last\):|E   )", re.MULTILINE)

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class TrajectoryStep(NamedTuple):
    """One turn of the agent."""

    thought: str
    commands: tuple[str, ...]
    outputs: tuple[str, ...]


def digests(trajectories: Sequence[bytes | str], attempts: Sequence[Attempt], *, tokens: int) -> list[str]:
    """Return digests of the attempts at one task within a budget for all of them, in their order.

    What a short attempt leaves of its share goes to the others. Each failing attempt also says which of its edits is
    the first that no passing attempt made, and what a passing one did instead.

    Args:
        tokens: budget, estimated from UTF-8 bytes.
    """
    turns = [steps(t) for t in trajectories]
    passing = [n for n, a in enumerate(attempts) if a.outcome == "resolved"]
    notes = [
        "" if a.outcome == "resolved" else _difference(turns, attempts, n, passing) for n, a in enumerate(attempts)
    ]
    found = [""] * len(attempts)
    left = tokens
    by_length = sorted(range(len(attempts)), key=lambda n: len(trajectories[n]))
    for done, n in enumerate(by_length):
        share = left // (len(attempts) - done)
        found[n] = _summarize(turns[n], attempts[n], share, notes[n])
        left -= _size(found[n]) // BYTES_PER_TOKEN
    return found


def digest(trajectory: bytes | str, attempt: Attempt, *, tokens: int = DEFAULT_TOKENS) -> str:
    """Return a digest of one attempt: its steps, its patch and how the tests judged it.

    The last test run, the last traceback and the agent's last check of its own are kept whole, within reason.
    Listings are cut first, then other outputs, thoughts and commands; then middle steps are left out and counted.

    Args:
        trajectory: mini's trajectory JSON; other text is taken as one transcript.
        tokens: budget, estimated from UTF-8 bytes.
    """
    return _summarize(steps(trajectory), attempt, tokens)


def _summarize(turns: Sequence[TrajectoryStep], attempt: Attempt, tokens: int, note: str = "") -> str:
    budget = tokens * BYTES_PER_TOKEN
    ending = _ending(attempt, note, budget // 4)
    left = budget - _size(ending)
    # What must survive: the last test run, the last other traceback, and the last own check.
    last: dict[str, int] = {}
    for number, step in enumerate(turns, 1):
        for command in step.commands:
            if _does(_TESTS, command):
                last["tests"] = number
            elif _does(_OWN_CHECK, command) and not _does(_EDITS, command):
                last["check"] = number
        if last.get("tests") != number and any(map(_TRACEBACK.search, step.outputs)):
            last["traceback"] = number
    lasting = set(last.values())
    shown: list[str] = []
    for listing, other, kept, thought, words in _LEVELS:
        shown = [
            render_step(n, step, kept if n in lasting else listing if _only_lists(step) else other, thought, words)
            for n, step in enumerate(turns, 1)
        ]
        if sum(map(_size, shown)) <= left:
            return "".join(shown) + ending
    return _most_telling(shown, lasting, {number for number, _ in _edits(turns)}, left) + ending


def _only_lists(step: TrajectoryStep) -> bool:
    return bool(step.commands) and all(_does(_LISTING, c) and not _does(_EDITS, c) for c in step.commands)


def _does(what: re.Pattern[str], command: str) -> bool:
    return what.search(command[:_LOOKED_AT]) is not None


def _difference(
    turns: Sequence[Sequence[TrajectoryStep]], attempts: Sequence[Attempt], mine: int, passing: Sequence[int]
) -> str:
    """Return a failing attempt's first edit that no passing attempt made; where there is none, what it lacks.

    An edit counts as made by both if its command is, or if all lines of the final patch that it writes are in the patch
    of a passing attempt as well.
    """
    edits = {n: list(_edits(turns[n])) for n in (mine, *passing)}
    ours = _changed(attempts[mine].patch)
    theirs = {line for n in passing for line in _changed(attempts[n].patch)}
    same = {" ".join(command.split()) for n in passing for _, command in edits[n]}
    for position, (number, command) in enumerate(edits[mine]):
        written = {line for line in ours if line in command}
        if " ".join(command.split()) in same or (written and written <= theirs):
            continue
        text = f"First edit that no passing attempt made: step {number}:\n$ {printable(command, 600)}\n"
        for n in passing:
            other = [edit for edit in edits[n] if edit not in edits[mine]][:1] or edits[n][position:][:1]
            if other:
                step, instead = other[0]
                return (
                    f"{text}Attempt {n + 1}, which passed, made instead, at step {step}:\n$ {printable(instead, 600)}\n"
                )
        return text
    for n in passing:
        if missing := sorted(_changed(attempts[n].patch) - ours):
            lines = "\n".join(f"+ {printable(line, 200)}" for line in missing[:_MISSING])
            return f"A passing attempt made every edit of this one, and attempt {n + 1} also wrote:\n{lines}\n"
    return ""


def _edits(turns: Sequence[TrajectoryStep]) -> Iterator[tuple[int, str]]:
    """Yield (step number, command) of each command that edits files."""
    for number, step in enumerate(turns, 1):
        yield from ((number, command) for command in step.commands if _does(_EDITS, command))


def _changed(patch: str) -> set[str]:
    """Return the lines that a patch adds, without white space around them."""
    lines = (change.text[1:].strip() for change in islice(patch_changes(patch), 500) if change.text[0] == "+")
    return {line for line in lines if len(line) > 3}


def clip(text: str, limit: int) -> str:
    """Return `text` within `limit` characters: its head and its tail, and how much was left out between."""
    if len(text) <= limit:
        return text
    if limit < 40:
        return f"[{len(text)} characters]"
    half = (limit - 30) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def printable(text: str, limit: int) -> str:
    """Return printable text within `limit`: no escape sequences, no control characters, no endless lines."""
    # Only what can survive is looked at, so that 50 MB cost what 50 kB cost.
    head = text if len(text) <= 20 * limit else text[: 10 * limit] + "\n" + text[-10 * limit :]
    plain = _ESCAPES.sub("", head)
    unseen = len(_UNSEEN.findall(plain))
    if unseen * 10 > len(plain):
        return f"[binary, {len(text)} characters]"
    lines = (clip(line, _LINE_LIMIT) for line in _UNSEEN.sub("", plain).splitlines())
    return clip("\n".join(lines).strip("\n"), limit)


def steps(trajectory: bytes | str) -> list[TrajectoryStep]:
    """Return the turns of mini's trajectory JSON; other text is one turn."""
    text = trajectory.decode("utf-8", "replace") if isinstance(trajectory, bytes) else trajectory
    try:
        document: Any = decode(text, object, where="trajectory")
        messages = document["messages"]
        steps: list[TrajectoryStep] = []  # turns and what followed; the prompt before them is known already
        for message in [m for m in messages if isinstance(m, dict)]:
            extra = message.get("extra") if isinstance(message.get("extra"), dict) else {}
            assert isinstance(extra, dict)
            if message.get("role") == "assistant":
                steps.append(TrajectoryStep(_text(message.get("content")), _commands(message, extra), ()))
            elif steps and message.get("role") != "exit":
                output = _text(extra.get("raw_output", message.get("content")))
                if extra.get("returncode") is not None:
                    output = f"[exit status {extra['returncode']}]\n{output}"
                steps[-1] = steps[-1]._replace(outputs=(*steps[-1].outputs, output))
        return steps
    except (RecordError, UnicodeError, KeyError, TypeError):
        return [TrajectoryStep(thought="", commands=(), outputs=(text,))] if text else []


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


def render_step(
    number: int, step: TrajectoryStep, output_limit: int, thought_limit: int = 500, command_limit: int = 1_200
) -> str:
    """Return one step in words, ending with an empty line, each part cut to so many characters."""
    parts = [f"Step {number}"]
    if step.thought.strip() and thought_limit:
        parts.append(printable(step.thought, thought_limit))
    outputs = [*step.outputs, *[""] * (len(step.commands) - len(step.outputs))]
    commands = [*step.commands, *[""] * (len(outputs) - len(step.commands))]
    for command, output in zip(commands, outputs, strict=True):
        if command:
            parts.append("$ " + printable(command, command_limit))
        if output:
            parts.append(printable(output, output_limit))
    return "\n".join(parts) + "\n\n"


def _most_telling(shown: Sequence[str], lasting: set[int], edits: set[int], budget: int) -> str:
    """Return the steps that fit: what must survive, edits, the first and the last, then others from the ends inward."""
    ends = sorted(range(1, len(shown) + 1), key=lambda n: min(n - 1, len(shown) - n))
    order = dict.fromkeys([*sorted(lasting, reverse=True), 1, *sorted(edits, reverse=True), *ends])
    left, chosen = budget - 60, set[int]()
    for number in order:
        cost = _size(shown[number - 1]) + 40  # and a line about what is left out before it
        if cost <= left:
            left -= cost
            chosen.add(number)
    parts, gap = [], 0
    for number, text in enumerate([*shown, ""], 1):
        if number in chosen or number > len(shown):
            parts += [f"[... {gap} steps left out ...]\n\n"] if gap else []
            parts.append(text)
            gap = 0
        else:
            gap += 1
    return "".join(parts)


_ROLES = {"quoted": "quoted in the issue", "other": "other", "before": "passed before"}


def _ending(attempt: Attempt, note: str, budget: int) -> str:
    """Return what follows the steps: patch, first difference, result and failed tests, each within `budget` bytes."""
    patch = printable(attempt.patch, 100_000) if attempt.patch.strip() else "(no change)"
    dropped = f"\nDropped before grading: {', '.join(attempt.dropped_paths)}" if attempt.dropped_paths else ""
    result = [attempt.outcome + (f": {printable(attempt.reason, _REASON_LIMIT)}" if attempt.reason else "")]
    if attempt.failed_tests:
        result.append("Tests that fail with this patch, expected values masked:")
    for failed in attempt.failed_tests:
        result.append(f"- [{_ROLES[failed.role]}] {printable(failed.test, 200)}: {printable(failed.reason, 300)}")
    if attempt.check_output:
        result.append(f"`{printable(attempt.check, 200)}` printed:")
        result.append(printable(attempt.check_output, _CHECK_LIMIT))
    shown = f"Final patch:\n{_cut(patch, budget - 20)}{_cut(printable(dropped, _REASON_LIMIT), budget // 8)}\n\n"
    shown += f"{_cut(note, budget)}\n" if note else ""
    return shown + "Final result: " + _cut("\n".join(result), budget) + "\n"


def _cut(text: str, budget: int) -> str:
    """Return `text` within so many bytes."""
    scale = max(1, _size(text)) / max(1, len(text))  # bytes a character
    short = clip(text, int(budget / scale))
    return short if _size(short) <= budget else clip(text, budget // 4)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
