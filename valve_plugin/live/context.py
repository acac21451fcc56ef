"""The context of a live run, and the notes for a prompt of another agent. If the bank cannot be used, there are none.

An agent can change the bank during a run of mini, so each run verifies it first. A person waits for the notes with each
prompt: `valve context --hook` runs `main` without the packages of the command line, and imports only what it needs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from valve_plugin import files
from valve_plugin.bank.identity import find_bank
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.scripted_bank import is_scripted, refusal
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import find
from valve_plugin.config import FILE_NAME as SETTINGS_FILE
from valve_plugin.config import as_judged, in_repository, load
from valve_plugin.errors import BankError, ValveError
from valve_plugin.paths import seen_file
from valve_plugin.records import Bank, Context, Panel
from valve_plugin.words import plural

EMPTY = Context(text="")
MAX_BYTES = 1_000_000
"""Largest event of a hook."""
_SETTLED = ("accepted", "made here")
Say = Callable[[str], None]
"""Shows the person one line."""


def compose(
    bank_dir: Path, local: LocalStore, retrieve: Callable[[Bank, Panel | None], Context], say: Say, model: str
) -> Context:
    """Return the context of the run.

    It is empty, and one line says why, for a damaged bank, for one of a later version, and for one that the scripted
    model taught where a real model runs.
    """
    from valve_plugin.bank.verify import verify

    try:
        store = BankStore.open(bank_dir)
        if not is_welcome(store, say):
            return EMPTY
        # what is wrong with its settings was said where they are read
        errors = [found for found in verify(bank_dir) if found.level == "error" and found.file != SETTINGS_FILE]
        if errors:
            first = f"{errors[0].file} {errors[0].place}".strip()
            raise BankError(
                f"{bank_dir} was changed and does not verify: {first}: {errors[0].message}; see `valve bank verify`"
            )
        for warning in store.warnings:
            say(warning)
        if why := refusal(bank_dir, model):
            say(why)
            return EMPTY
        context = retrieve(store.bank, store.panel())
        if context.left_out:
            local.write_telemetry("left_out", {"items": context.left_out, "context": context.hash})
        if context.items:
            local.count_use(context)
            from valve_plugin.retrieval.embedding import mismatch

            panel = store.panel()
            if panel is not None and (warning := mismatch(panel.embedding, context.embedding)):
                say(warning)
    except ValveError as e:
        say(f"nothing is injected: {e}")
        return EMPTY
    return context


def require_welcome(store: BankStore, say: Say) -> None:
    """Ask as `is_welcome` does, for what is about nothing but the notes.

    Raises:
        BankError: they are not wanted.
    """
    if not is_welcome(store, say):
        raise BankError(f"nothing was done: you do not want the notes of {store.dir}; --bank DIR names another bank")


def is_welcome(store: BankStore, say: Say, *, ask: bool = True) -> bool:
    """Return whether the notes of a bank may be used; ask once about one that came with a clone.

    At a terminal the person is asked; elsewhere the bank is named, and used. A bank that was made or used on this
    machine, and one outside of a repository, is the person's own. Everything that hands notes on asks here.

    Args:
        ask: False where stdin is not the person's, whatever it is.
    """
    note = seen_file(store.dir)
    state = files.read_text(note, 100)
    used_before = any((store.local.dir / name).exists() for name in ("attempts", "journal", "usage.jsonl"))
    if state == "declined":
        say(f"{store.dir}: not used, as you answered; to be asked again, delete {note}")
        return False
    if state in _SETTLED or (used_before and not state) or not (store.bank.items and in_repository(store.dir)):
        return True
    notes = plural(sum(not item.hidden for item in store.bank.items), "note")
    what = f"{store.dir} came with this repository: {notes} for the agent"
    if not (ask and sys.stdin.isatty() and sys.stderr.isatty()):
        say(f"{what}; they are used; `valve bank list` and `valve bank lint` show what they say")
        _remember(note, "named")
        return True
    sys.stderr.write(f"valve: {what}. `valve bank list` and `valve bank lint` show what they say. Use them? [y/N] ")
    sys.stderr.flush()
    welcome = sys.stdin.readline().strip().lower() in ("y", "yes")
    _remember(note, "accepted" if welcome else "declined")
    return welcome


def _remember(note: Path, state: str) -> None:
    files.make_private_dir(note.parent)
    files.write_atomic(note, state.encode())


# For the hooks of other agents


def main() -> None:
    """Print the notes for the event on stdin, or nothing.

    Only a clone's bank is named on stderr, and no error ends the prompt: it is the person's, not ours.
    """
    try:
        sys.stdout.buffer.write(answer(sys.stdin.buffer.read(MAX_BYTES + 1)).encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    except (KeyboardInterrupt, OSError):
        os._exit(0)  # whoever asked is gone; the interpreter would complain about a closed pipe


def answer(raw: bytes, bank: str = "") -> str:
    """Return the block for the prompt of a hook's event; "" where there are no notes, or they cannot be used."""
    try:
        event = read_event(raw)
        os.chdir(event["cwd"])
        return notes(find_bank(bank, find(Path.cwd())), str(event["prompt"]), _on_stderr).text
    except (ValveError, OSError, ValueError, KeyError, TypeError):
        return ""


def _on_stderr(line: str) -> None:
    if sys.stderr:  # where it is closed, there is none
        sys.stderr.write(f"valve: {line}\n")


def read_event(raw: bytes) -> dict[str, Any]:
    """Return a hook's event.

    Raises:
        ValueError: it is none.
    """
    event = json.loads(raw) if len(raw) <= MAX_BYTES else None
    if not isinstance(event, dict):
        raise ValueError("expected an object of JSON, as Claude Code gives it to its hooks")
    return event


def notes(bank_dir: Path, prompt: str, say: Say = lambda line: None) -> Context:
    """Return the context of a prompt; it is empty if the bank may not be used here.

    Raises:
        ValveError: the bank cannot be read.
    """
    store = BankStore.open(bank_dir)
    if not store.bank.items or is_scripted(store.dir) or not is_welcome(store, say, ask=False):
        return EMPTY
    settings = load(store.dir)
    if settings.retrieval == "auto":
        settings = as_judged(settings, store.panel())
    if settings.plugins == ("valve",):  # without the packages that find others
        from valve_plugin.retrieval.contexts import retrieve

        return retrieve(settings, store.bank, "", prompt)
    from valve_plugin import plugins

    hook = plugins.load(settings.plugins).hook
    found: Context | None = hook.valve_retrieve(settings=settings, bank=store.bank, task_id="", issue=prompt)
    return found or EMPTY
