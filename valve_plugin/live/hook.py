"""What an agent's prompt hook gets: the notes for the prompt of its event.

A person waits for it with each prompt, so `valve context --hook` runs this without the packages of the command line,
and imports only what it needs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from valve_plugin.bank.identity import find_bank
from valve_plugin.bank.scripted_bank import is_scripted
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import find
from valve_plugin.config import Settings, as_judged, load
from valve_plugin.errors import ValveError
from valve_plugin.live.context import EMPTY, is_welcome, panel_file
from valve_plugin.records import Context

MAX_BYTES = 1_000_000


def main() -> None:
    """Print the notes for the event on stdin, or nothing.

    Nothing is written to stderr, and no error ends the prompt: it is the person's, not ours.
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
        return notes(find_bank(bank, find(Path.cwd())), str(event["prompt"])).text
    except (ValveError, OSError, ValueError, KeyError, TypeError):
        return ""


def read_event(raw: bytes) -> dict[str, Any]:
    """Return a hook's event.

    Raises:
        ValueError: it is none.
    """
    event = json.loads(raw) if len(raw) <= MAX_BYTES else None
    if not isinstance(event, dict):
        raise ValueError("expected an object of JSON, as Claude Code gives it to its hooks")
    return event


def notes(bank_dir: Path, prompt: str) -> Context:
    """Return the context of a prompt; it is empty if the bank may not be used here.

    Raises:
        ValveError: the bank cannot be read.
    """
    store = BankStore.open(bank_dir)
    if not store.bank.items or is_scripted(store.dir) or not is_welcome(store, lambda line: None):
        return EMPTY
    settings = load(store.dir)
    if settings.retrieval == "auto":
        settings = as_judged(settings, panel_file(store.dir))  # without a replay of the whole ledger
    return _retrieve(settings, store, prompt) or EMPTY


def _retrieve(settings: Settings, store: BankStore, prompt: str) -> Context | None:
    """Ask the plugins; where there is only ours, without the packages that find others."""
    if settings.plugins == ("valve",):
        from valve_plugin.retrieval.contexts import retrieve

        return retrieve(settings, store.bank, "", prompt)
    from valve_plugin import plugins

    hook = plugins.load(settings.plugins).hook
    found: Context | None = hook.valve_retrieve(settings=settings, bank=store.bank, task_id="", issue=prompt)
    return found
