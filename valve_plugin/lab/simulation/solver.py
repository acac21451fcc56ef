"""The SIMULATED solver: it looks, edits through bash, sometimes checks, and submits. Pure: its key decides all.

A SWE-smith patch *introduces* the bug, so its new side is what the workspace holds and its old side is the fix.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import NamedTuple

from valve_plugin.lab.simulation import parameters as p
from valve_plugin.lab.simulation.parameters import Draw
from valve_plugin.records import Task

_FILE = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)")
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")
_NAME = re.compile(r"\b(?:def|class)\s+(\w+)")
_SLIPS: tuple[tuple[str, str], ...] = (
    (r"==", "!="), (r"!=", "=="), (r"<=", "<"), (r">=", ">"),
    (r"(?<![<\-=])>(?![=>])", ">="), (r"(?<![<=])<(?![=<])", "<="),
    (r"\bis not\b", "is"), (r"\bnot in\b", "in"), (r"\bnot\b ", ""), (r"\bis\b(?! not)", "is not"),
    (r"\band\b", "or"), (r"\bor\b", "and"), (r"\bTrue\b", "False"), (r"\bFalse\b", "True"),
    (r"(?<=[\w)\]]) \+ (?=[\w(\[])", " - "), (r"(?<=[\w)\]]) - (?=[\w(\[])", " + "), (r"(?<![\w.])1(?![\w.])", "0"),
    (r"(?<![\w.])0(?![\w.])", "1"), (r"\bNone\b", "False"),
)  # fmt: skip
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class LineChange(NamedTuple):
    """One run of neighbouring lines to replace."""

    path: str
    line: int
    """Where `present` begins in the workspace's file, from 1; with nothing present, the line to insert before."""
    present: tuple[str, ...]
    """The buggy lines, without line ends."""
    wanted: tuple[str, ...]
    """The lines to put there."""


def changes(patch: str) -> list[LineChange]:
    """Return the changes that undo a bug patch, in the patch's order.

    A patch that only renames, creates or deletes whole files has none: the solver gives such a task up.
    """
    found: list[LineChange] = []
    path = ""
    lines = iter(patch.split("\n"))
    for text in lines:
        if header := _FILE.match(text):
            path = header[1]
        elif (hunk := _HUNK.match(text)) and path not in ("", "/dev/null"):
            start = int(hunk[3]) + (hunk[4] == "0")  # an empty side is numbered by the line before it
            found += _in_hunk(path, start, _body(lines, int(hunk[2] or 1), int(hunk[4] or 1)))
    return found


def _body(lines: Iterator[str], old: int, new: int) -> Iterator[str]:
    """Yield a hunk's lines by its counts, since a removed line may itself look like a header."""
    while old > 0 or new > 0:
        text = next(lines, None)
        if text is None:
            return
        old -= text[:1] in ("-", " ", "")
        new -= text[:1] in ("+", " ", "")
        yield text


def _in_hunk(path: str, line: int, body: Iterator[str]) -> Iterator[LineChange]:
    present: list[str] = []
    wanted: list[str] = []
    for text in itertools.chain(body, [" "]):  # a last context line closes the last change
        if text.startswith("+"):
            present.append(text[1:])
        elif text.startswith("-"):
            wanted.append(text[1:])
        elif not text.startswith("\\"):  # "\ No newline at end of file" moves nothing
            if present or wanted:
                yield LineChange(path, line, tuple(present), tuple(wanted))
            line += len(present) + 1
            present, wanted = [], []


def function_of(patch: str) -> str:
    """Return the function or class that stands above a patch's first change, else the first one below, else ""."""
    above, changed = "", False
    for text in patch.split("\n"):
        hunk = _HUNK.match(text)
        if name := _NAME.search(hunk[5] if hunk else text):
            above = name[1]
        changed |= text[:1] in ("+", "-") and not text.startswith(("+++ ", "--- "))
        if changed and above:
            return above
    return ""


def slips(all_changes: Sequence[LineChange]) -> list[list[LineChange]]:
    """Return every variant of the fix in which one operator or constant of one restored line is wrong."""
    return [
        [*all_changes[:i], change._replace(wanted=wrong), *all_changes[i + 1 :]]
        for i, change in enumerate(all_changes)
        for wrong in _one_slip(change.wanted)
        if wrong != change.present
    ]


def _one_slip(lines: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for i, line in enumerate(lines):
        if line.lstrip().startswith(("#", '"', "'", ">>>")):  # comments, texts and doctests change no behaviour
            continue
        for pattern, slip in _SLIPS:
            wrong = re.sub(pattern, slip, line, count=1)
            if wrong != line:
                yield (*lines[:i], wrong, *lines[i + 1 :])


def command(edits: Sequence[LineChange]) -> str:
    """Return one bash command that makes the edits: a Python program that assigns to slices of lines."""
    body = ["from pathlib import Path"]
    for path in dict.fromkeys(c.path for c in edits):
        body += [f"path = Path({path!r})", 'lines = path.read_bytes().decode().split("\\n")']
        mine = [c for c in edits if c.path == path]
        for c in sorted(mine, key=lambda c: -c.line):  # from below, so that line numbers above stay valid
            body.append(f"lines[{c.line - 1}:{c.line - 1 + len(c.present)}] = {_literal(c.wanted)}")
        body.append('path.write_bytes("\\n".join(lines).encode())')
    return "python3 - <<'PYTHON'\n" + "\n".join(body) + "\nPYTHON"


def _literal(lines: Sequence[str]) -> str:
    return "[\n" + "".join(f"    {line!r},\n" for line in lines) + "]" if lines else "[]"


def append(path: str, lines: Sequence[str]) -> str:
    """Return a bash command that adds lines to the end of a file."""
    body = "\n".join(lines)
    return f"cat >> {quote(path)} <<'EOF'\n{body}\nEOF"


@dataclass(frozen=True)
class AgentStep:
    """One reply: what the model says and the command it runs."""

    thought: str
    command: str


def bug_class(instance_id: str) -> p.BugClass:
    """Return the class of a task's bug, from the SWE-smith modifier that ends its id."""
    modifier = instance_id.rpartition(".")[2]
    for start, found in p.CLASSES.items():
        if modifier.startswith(start):
            return found
    return "other"


def success_chance(instance_id: str, system_message: str) -> float:
    """Return the chance that one attempt at the task ends with the right fix.

    Logits add up: the class of bug, the task's own difficulty, and every known lesson named in the system message.
    """
    kind = bug_class(instance_id)
    base = p.BASE[kind]
    difficulty = (2 * Draw("difficulty", instance_id).uniform() - 1) * p.SPREAD
    taught = sum(x.effect(kind) * x.count_in(system_message) for x in p.lessons())
    taught = max(-p.EFFECT_CAP, min(p.EFFECT_CAP, taught))
    logit = math.log(base / (1 - base)) - difficulty + taught
    return max(p.FLOOR, min(p.CEILING, 1 / (1 + math.exp(-logit))))


def script(task: Task, chance: float, draw: Draw) -> list[AgentStep]:
    """Return all steps of one attempt.

    Args:
        draw: keyed by all this attempt may depend on: seed, task, ordinal, role and hash of the block.
    """
    fix = changes(task.patch)
    if fix and draw.chance(chance, "solved"):
        step: AgentStep | None = AgentStep("This is the cause; I repair it.", command(fix))
    else:
        step = _wrong(task, fix, draw)
    steps = _looks(task, fix, draw)
    if step:
        steps.append(step)
        if draw.chance(p.CHECK, "check"):
            steps.append(_check(fix[0].path))
    return [*steps, AgentStep("I am done and submit.", SUBMIT)]


def _looks(task: Task, fix: list[LineChange], draw: Draw) -> list[AgentStep]:
    wider = [
        AgentStep("Let me see what is here.", "ls"),
        AgentStep("How large is the code?", "find . -name '*.py' -not -path './.*' | xargs wc -l | sort -n | tail -15"),
        AgentStep("What does the project say about itself?", "head -25 README* 2>/dev/null"),
        AgentStep("Where are the tests?", "find . -name 'test_*.py' -not -path './.*' | head -20"),
        AgentStep("How is the package laid out?", "find . -maxdepth 2 -type d -not -path './.*' | sort | head -40"),
    ]
    close: list[AgentStep] = []
    if fix:
        where, name = fix[0].path, function_of(task.patch)
        if name:
            search = f"grep -rn {quote(name)} --include='*.py' . | head -20"
            close.append(AgentStep(f"The report leads to `{name}`.", search))
        first = max(1, fix[0].line - draw.pick((8, 15, 25), "before"))
        last = fix[0].line + draw.pick((12, 20, 40), "after")
        close.append(AgentStep(f"Now the code in {where}.", f"nl -ba {quote(where)} | sed -n '{first},{last}p'"))
    how_many = 2 + math.floor(draw.uniform("looks") * (p.LOOKS - 1))
    return draw.shuffled(wider, "look")[: max(1, how_many - len(close))] + close


def _wrong(task: Task, fix: list[LineChange], draw: Draw) -> AgentStep | None:
    """Return the edit of a drawn way to fail, None for giving up; where a patch does not allow it, the next one."""
    way: p.Failure = draw.weighted(p.FAILURES, "failure") if fix else "giveup"
    if way == "partial" and len(fix) > 1:
        return AgentStep("This line looks wrong; that must be it.", command([draw.pick(fix, "which")]))
    if way in ("partial", "operator") and (swapped := slips(fix)):
        return AgentStep("I rewrite the condition as it should be.", command(draw.pick(swapped, "slip")))
    if way == "giveup":
        return None
    name = function_of(task.patch) or "value"
    guard = ["", "", f"def _checked_{name}(value):", '    """Never let an empty value through."""']
    guard.append("    return [] if value is None else value")
    return AgentStep("A guard against empty values will do.", append(fix[0].path, guard))


def _check(path: str) -> AgentStep:
    parse = 'import ast, sys; ast.parse(open(sys.argv[1], "rb").read()); print("ok")'
    return AgentStep("Does the file still parse?", f"python3 -c {quote(parse)} {quote(path)} && git diff --stat")
