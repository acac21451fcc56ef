"""A third-party plugin whose agent and model are hashes: a whole evolution in seconds, nothing mocked around it.

Its outcomes depend on task, ordinal and context alone; how long each takes is random. `$TOY_DOWN` may name a file:
while it exists, the rollouts it lists are errored, by a fault of kind `$TOY_FAULT` if that is set. `$TOY_LOST` is the
share of tries that are lost at random, `$TOY_USD` what a rollout costs, `$TOY_STARTED` a file that each try adds a line
to. With `$TOY_ASKS`, extraction is left to the built-in step. `$TOY_CLOCK` may name a file: the wall clock is off by
the seconds it holds, whenever it is read. With `$TOY_HOURLY` the clock of budgets goes on by an hour with each try that
starts, and by nothing else. `$TOY_HOLD` may name a file: while it exists, tries wait.
"""

import os
import random
import time
from pathlib import Path

import valve_plugin.rollouts.retry
from valve_plugin.codec import digest
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Item, Proposal

valve_plugin.rollouts.retry.PAUSES = (0.01,) * 6

if "TOY_CLOCK" in os.environ:
    right = time.time
    time.time = lambda: right() + float(Path(os.environ["TOY_CLOCK"]).read_text() or 0)


def clock():
    if "TOY_HOURLY" not in os.environ:
        return time.monotonic()
    started = Path(os.environ["TOY_STARTED"])
    return 3600.0 * (started.read_text().count("\n") if started.exists() else 0)


no_limits, _ = valve_plugin.rollouts.retry.Guard.__init__.__defaults__
valve_plugin.rollouts.retry.Guard.__init__.__defaults__ = no_limits, clock


def draw(*key):
    return int(digest(list(key))[:8], 16) / 16**8


def words(key, number):
    return " ".join(digest([key, i])[:8] for i in range(number))


@hookimpl
def valve_attempt(settings, task, context, ordinal, source):
    if "TOY_STARTED" in os.environ:
        with Path(os.environ["TOY_STARTED"]).open("a") as file:
            file.write(f"{source} {task.instance_id} {ordinal}\n")
    while Path(os.environ.get("TOY_HOLD", "/nonexistent")).exists():
        time.sleep(0.01)
    time.sleep(random.random() * float(os.environ.get("TOY_SECONDS", "0.02")))
    down = Path(os.environ.get("TOY_DOWN", "/nonexistent"))
    if (
        down.exists()
        and f"{source} {task.instance_id[-2:]} {ordinal} {context.hash[:8]}" in down.read_text().splitlines()
    ):
        outcome, reason = "errored", "the provider is down"
    elif random.random() < float(os.environ.get("TOY_LOST", "0")):
        outcome, reason = "errored", "the host is not well"
    else:
        chance = 0.4 + 0.2 * ("GOOD" in context.text) - 0.3 * context.text.count("BAD")
        solved = draw("attempt", settings.seed, task.instance_id, ordinal, context.hash) < chance
        outcome, reason = ("resolved", "") if solved else ("unresolved", "a test fails")
    return Attempt(
        id=digest([task.instance_id, ordinal, context.hash])[:16],
        task_id=task.instance_id,
        ordinal=ordinal,
        source=source,
        outcome=outcome,
        reason=reason,
        fault=os.environ.get("TOY_FAULT", "") if outcome == "errored" else "",
        context_hash=context.hash,
        context_items=context.items,
        recorded_at=time.time(),
        cost_usd=float(os.environ.get("TOY_USD", "0")),
        seconds=random.random(),
    )


@hookimpl
def valve_extract(settings, bank, issue, attempts, trajectories):
    if "TOY_ASKS" in os.environ:
        return None  # the built-in step asks a model
    task_id = attempts[0].task_id
    lesson = ("GOOD", "BAD", "IDLE")[int(draw("extract", settings.seed, task_id) * 3)]
    item = Item(
        kind="skill",
        name=f"{lesson.lower()}_{task_id[-2:]}",
        text=f"{lesson} advice about {words(task_id, 6)}",
        markdown=f"**Scope:** {lesson} {words(task_id, 30)}",
        source_tasks=(task_id,),
        passes=sum(a.outcome == "resolved" for a in attempts),
        attempts=len(attempts),
    )
    nothing = draw("nothing", settings.seed, task_id) < 0.1
    return Proposal(task_id=task_id, items=() if nothing else (item,), reason="nothing learned" if nothing else "")
