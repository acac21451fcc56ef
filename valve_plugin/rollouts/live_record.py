"""Keeping a live attempt: redacted, with its trajectory; and noticing when there is something to learn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from valve_plugin.bank import files
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.lock import locked
from valve_plugin.bank.redact import Redactor
from valve_plugin.codec import canonical, convert, digest, plain
from valve_plugin.config import Settings
from valve_plugin.records import Attempt
from valve_plugin.rollouts.lifeline import tied
from valve_plugin.rollouts.live_context import Say
from valve_plugin.rollouts.processes import VALVE, python
from valve_plugin.shell_words import quote
from valve_plugin.words import plural

FEWEST_GRADED = 3
"""Graded attempts of one group before it can be mixed; the method contrasts three."""
_LOCK_SECONDS = 30.0
_STDERR = 2
LINES, CHARACTERS = 40, 4_000
"""Kept of what a check printed."""


def keep(local: LocalStore, attempt: Attempt, trajectory: Any, redactor: Redactor) -> Attempt:
    """Store an attempt and its trajectory (plain data in mini's format) without secrets."""
    attempt = convert(redactor.tree(plain(attempt)), Attempt, where="attempt")
    attempt = replace(attempt, check_output=last_lines(attempt.check_output))
    return local.add_attempt(attempt, json.dumps(redactor.tree(trajectory), default=redactor.shown).encode())


def last_lines(text: str) -> str:
    """Return the end of a text: whole lines where they fit, at most 40 and 4,000 characters. Pure."""
    end = "\n".join(text.rstrip().splitlines()[-LINES:])
    if len(end) <= CHARACTERS:
        return end
    cut = end[-CHARACTERS:]
    return cut.partition("\n")[2] or cut


def shown_by(attempt: Attempt, settings: Settings, what: str = "it") -> str:
    """Return the words that say which command shows an attempt."""
    more = " and the check's last lines" if attempt.check_output else ""
    return f"{command('show', settings, attempt.id)} shows {what}{more}"


def command(name: str, settings: Settings, *words: str) -> str:
    """Return a command of `valve attempts` for the bank of this run, in ticks."""
    bank = ("--bank", quote(settings.bank)) if settings.bank else ()
    return f"`{' '.join(['valve attempts', name, *words, *bank])}`"


def learn_from(bank_dir: Path, local: LocalStore, attempt: Attempt, mode: str, say: Say) -> None:
    """Queue an extraction when an attempt made its group mixed; "inline": and judge the queue at once.

    Args:
        mode: `settings.learn`; "off" does nothing.
    """
    if mode == "off" or attempt.outcome not in ("resolved", "unresolved"):
        return
    group = group_of(local.attempts(attempt.task_id), attempt)
    if not (mixed(group) and enqueue(local, group)):
        return
    passes, waiting = sum(a.outcome == "resolved" for a in group), len(local.queue())
    say(
        f"{passes} of {plural(len(group), 'attempt')} passed: queued for learning; {waiting} waiting, "
        "`valve gate` judges them"
    )
    if mode == "inline":
        # A process of its own, as when a person types it: mini's stdout stays mini's, and nothing is imported here.
        command = python(VALVE, "gate", "--bank", str(bank_dir))
        with tied(command, interrupted=True, stdin=subprocess.DEVNULL, stdout=_STDERR) as judging:
            judging.wait()


def group_of(attempts: Sequence[Attempt], one: Attempt) -> list[Attempt]:
    """Return the graded live attempts at the same task, from the same tree, under the same context."""
    key = (one.task_text, one.base_tree, one.context_hash)
    return [
        a
        for a in attempts
        if a.source == "live"
        and a.outcome in ("resolved", "unresolved")
        and (a.task_text, a.base_tree, a.context_hash) == key
    ]


def mixed(group: Sequence[Attempt]) -> bool:
    """Tell whether some graded attempts of a group passed and some did not: then there is something to contrast."""
    passes = sum(a.outcome == "resolved" for a in group)
    return len(group) >= FEWEST_GRADED and 0 < passes < len(group)


def enqueue(local: LocalStore, group: Sequence[Attempt]) -> bool:
    """Queue one extraction for a group, once for all time; False when that was done before."""
    first = group[0]
    name = digest([first.task_text, first.base_tree, first.context_hash])[:16]
    marks = local.dir / "groups"
    files.make_dir(marks)
    mark = marks / name
    # Queued first and marked second, under a lock: a kill in between queues nothing twice while the job waits.
    with locked(marks / ".lock", _LOCK_SECONDS, f"{marks}: another process keeps the lock"):
        if mark.exists() or any(job.get("group") == name for job in local.queue()):
            return False
        job = {
            "kind": "extract",
            "group": name,
            "task_id": first.task_id,
            "issue": first.task_text,
            "attempts": [a.id for a in group],
        }
        local.queue_push(job)
        files.write_new(mark, canonical(job["attempts"]))
    return True
