"""Storing live attempts (redacted, with their trajectories) and queueing mixed groups for extraction."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from valve_plugin import files
from valve_plugin.bank.local import LocalStore
from valve_plugin.codec import canonical, convert, digest, plain
from valve_plugin.config import Settings
from valve_plugin.files import hold_lock
from valve_plugin.live.context import Say
from valve_plugin.records import Attempt
from valve_plugin.redact import Redactor
from valve_plugin.sandbox.supervisor import VALVE_MAIN, child_process, python_command
from valve_plugin.shell_words import quote
from valve_plugin.words import plural

FEWEST_GRADED = 3
"""Minimum number of graded attempts in a mixed group; the method contrasts three."""
_LOCK_SECONDS = 30.0
_STDERR = 2
LINES, CHARACTERS = 40, 4_000
"""Maximum number of lines and characters that are kept of a check's output."""


def keep_attempt(local: LocalStore, attempt: Attempt, trajectory: Any, redactor: Redactor) -> Attempt:
    """Store an attempt and its trajectory (plain data in mini's format) without secrets; return the stored attempt."""
    attempt = convert(redactor.tree(plain(attempt)), Attempt, where="attempt")
    attempt = replace(attempt, check_output=last_lines(attempt.check_output))
    return local.add_attempt(attempt, json.dumps(redactor.tree(trajectory), default=redactor.shown).encode())


def last_lines(text: str) -> str:
    """Return the last lines of a text: at most 40 lines and 4,000 characters. Pure."""
    end = "\n".join(text.rstrip().splitlines()[-LINES:])
    if len(end) <= CHARACTERS:
        return end
    cut = end[-CHARACTERS:]
    return cut.partition("\n")[2] or cut


def next_ordinal(local: LocalStore, task_id: str, context_hash: str) -> int:
    """Return the first unused ordinal of a task and context."""
    ordinals = [a.ordinal for a in local.attempts(task_id) if a.context_hash == context_hash]
    return max(ordinals, default=-1) + 1


def show_hint(attempt: Attempt, settings: Settings, what: str = "it") -> str:
    """Return a part of a sentence with the command that shows an attempt."""
    more = " and the check's last lines" if attempt.check_output else ""
    return f"{show_command('show', settings, attempt.id)} shows {what}{more}"


def show_command(name: str, settings: Settings, *words: str) -> str:
    """Return a command of `valve attempts` for the bank of this run, in backticks."""
    bank = ("--bank", quote(settings.bank)) if settings.bank else ()
    return f"`{' '.join(['valve attempts', name, *words, *bank])}`"


def learn_from(bank_dir: Path, local: LocalStore, attempt: Attempt, mode: str, say: Say) -> None:
    """Queue an extraction if the attempt's group is mixed now.

    Args:
        mode: `settings.learn`: "off" does nothing, "inline" also judges the queue at once.
    """
    if mode == "off" or attempt.outcome not in ("resolved", "unresolved"):
        return
    group = group_of(local.attempts(attempt.task_id), attempt)
    if not (is_mixed(group) and enqueue(local, group)):
        return
    passes, waiting = sum(a.outcome == "resolved" for a in group), len(local.queue())
    say(
        f"{passes} of {plural(len(group), 'attempt')} passed: queued for learning ({waiting} in the queue; "
        "`valve gate` judges them)"
    )
    if mode == "inline":
        # In another process, so that it does not write to mini's stdout and imports nothing here.
        command = python_command(VALVE_MAIN, "gate", "--bank", str(bank_dir))
        with child_process(command, interruptible=True, stdin=subprocess.DEVNULL, stdout=_STDERR) as judging:
            judging.wait()


def group_of(attempts: Sequence[Attempt], one: Attempt) -> list[Attempt]:
    """Return the graded live attempts with the same task, starting tree and context as `one`."""
    key = (one.task_text, one.base_tree, one.context_hash)
    return [
        a
        for a in attempts
        if a.source == "live"
        and a.outcome in ("resolved", "unresolved")
        and (a.task_text, a.base_tree, a.context_hash) == key
    ]


def is_mixed(group: Sequence[Attempt]) -> bool:
    """Whether a group has enough graded attempts, and some passed and some failed."""
    passes = sum(a.outcome == "resolved" for a in group)
    return len(group) >= FEWEST_GRADED and 0 < passes < len(group)


def enqueue(local: LocalStore, group: Sequence[Attempt]) -> bool:
    """Queue an extraction for a group; return False if that was done before."""
    first = group[0]
    name = digest([first.task_text, first.base_tree, first.context_hash])[:16]
    marks = local.dir / "groups"
    files.make_private_dir(marks)
    mark = marks / name
    # Under a lock, queue first and mark then. After a kill in between, the queue itself shows that it is done.
    with hold_lock(marks / ".lock", _LOCK_SECONDS, f"{marks}: another process keeps the lock"):
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
