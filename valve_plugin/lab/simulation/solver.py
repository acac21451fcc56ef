"""The SIMULATED solver: it looks, edits through bash, sometimes checks, and submits. Pure: its key decides all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from shlex import quote

from valve_plugin.lab.simulation import edits
from valve_plugin.lab.simulation import parameters as p
from valve_plugin.lab.simulation.draw import Draw
from valve_plugin.records import Task

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


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
    fix = edits.changes(task.patch)
    if fix and draw.chance(chance, "solved"):
        step: AgentStep | None = AgentStep("This is the cause; I repair it.", edits.command(fix))
    else:
        step = _wrong(task, fix, draw)
    steps = _looks(task, fix, draw)
    if step:
        steps.append(step)
        if draw.chance(p.CHECK, "check"):
            steps.append(_check(fix[0].path))
    return [*steps, AgentStep("I am done and submit.", SUBMIT)]


def _looks(task: Task, fix: list[edits.LineChange], draw: Draw) -> list[AgentStep]:
    wider = [
        AgentStep("Let me see what is here.", "ls"),
        AgentStep("How large is the code?", "find . -name '*.py' -not -path './.*' | xargs wc -l | sort -n | tail -15"),
        AgentStep("What does the project say about itself?", "head -25 README* 2>/dev/null"),
        AgentStep("Where are the tests?", "find . -name 'test_*.py' -not -path './.*' | head -20"),
        AgentStep("How is the package laid out?", "find . -maxdepth 2 -type d -not -path './.*' | sort | head -40"),
    ]
    close: list[AgentStep] = []
    if fix:
        where, name = fix[0].path, edits.function_of(task.patch)
        if name:
            search = f"grep -rn {quote(name)} --include='*.py' . | head -20"
            close.append(AgentStep(f"The report leads to `{name}`.", search))
        first = max(1, fix[0].line - draw.pick((8, 15, 25), "before"))
        last = fix[0].line + draw.pick((12, 20, 40), "after")
        close.append(AgentStep(f"Now the code in {where}.", f"nl -ba {quote(where)} | sed -n '{first},{last}p'"))
    how_many = 2 + math.floor(draw.uniform("looks") * (p.LOOKS - 1))
    return draw.shuffled(wider, "look")[: max(1, how_many - len(close))] + close


def _wrong(task: Task, fix: list[edits.LineChange], draw: Draw) -> AgentStep | None:
    """Return the edit of a drawn way to fail, None for giving up; where a patch does not allow it, the next one."""
    way: p.Failure = draw.weighted(p.FAILURES, "failure") if fix else "giveup"
    if way == "partial" and len(fix) > 1:
        return AgentStep("This line looks wrong; that must be it.", edits.command([draw.pick(fix, "which")]))
    if way in ("partial", "operator") and (slips := edits.slips(fix)):
        return AgentStep("I rewrite the condition as it should be.", edits.command(draw.pick(slips, "slip")))
    if way == "giveup":
        return None
    name = edits.function_of(task.patch) or "value"
    guard = ["", "", f"def _checked_{name}(value):", '    """Never let an empty value through."""']
    guard.append("    return [] if value is None else value")
    return AgentStep("A guard against empty values will do.", edits.append(fix[0].path, guard))


def _check(path: str) -> AgentStep:
    parse = 'import ast, sys; ast.parse(open(sys.argv[1], "rb").read()); print("ok")'
    return AgentStep("Does the file still parse?", f"python3 -c {quote(parse)} {quote(path)} && git diff --stat")
