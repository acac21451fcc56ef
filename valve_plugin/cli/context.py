"""`valve context`: the block VALVE would inject, for any other agent."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from valve_plugin.cli import output, runs
from valve_plugin.cli.options import BankDir, Commands, Json, argument, flag, option, read_input
from valve_plugin.codec import plain
from valve_plugin.errors import ConfigError, PluginError
from valve_plugin.records import Context

_MAX_BYTES = 1_000_000

commands = Commands()


@commands.add(
    "context",
    "valve context 'Timestamps lose their time zone'",
    "gh issue view 41 --json body -q .body | valve context -",
    'other-agent --append-system-prompt "$(valve context --file issue.md)"',
    "valve context --hook < event.json           # as the prompt hook of Claude Code; see `valve connect`",
)
def context(
    text: Annotated[str, argument("TASK", "What the agent is asked; - reads stdin.", show_default=False)] = "",
    file: Annotated[Path | None, option("--file", "FILE", "Read the task from this file.")] = None,
    bank: BankDir = "",
    simulate: Annotated[bool, flag("--simulate", "Also print it of a simulation's bank, only to look at it.")] = False,
    hook: Annotated[bool, flag("--hook", "Read a prompt hook's event from stdin; print notes or nothing.")] = False,
    json: Json = False,
) -> None:
    """Print the notes for a task, for any other agent.

    The block is what `mini --plugin valve` adds at the end of the system message. An empty bank gives an empty block
    and a note on stderr. A simulation's bank is refused: a real agent must not get what a script taught.
    """
    from valve_plugin import plugins
    from valve_plugin.bank.identity import describe_mismatch, is_foreign
    from valve_plugin.checkout import find
    from valve_plugin.live.context import is_welcome

    if hook:
        from valve_plugin.live.context import MAX_BYTES, answer

        output.verbatim(answer(sys.stdin.buffer.read(MAX_BYTES + 1), bank))
        return
    if bool(text) == bool(file):
        raise ConfigError("give the task once: `valve context TASK`, `valve context -` for stdin, or --file PATH")
    issue = os.fsencode(text).decode("utf-8", "replace")  # whatever encoding the locale names
    if file or issue == "-":
        issue = read_input(str(file or "-"), _MAX_BYTES).decode("utf-8", "replace")
    store = runs.open_store(bank, simulate)
    simulation = runs.note_simulation(store.dir, json=json, data=True)
    if simulation and not simulate:
        raise ConfigError(
            f"{store.dir} was learned or judged by the scripted model: for no real agent; --simulate prints it"
        )

    here = find(Path.cwd())
    if is_foreign(store.bank.repo, store.dir, here):
        words = describe_mismatch(store.bank.repo, store.dir, here.name)
        output.note(f"valve: {words}: its notes are not about this code", style="yellow")
    settings = store.settings()
    hooks = plugins.load(settings.plugins).hook
    block = hooks.valve_retrieve(settings=settings, bank=store.bank, task_id="", issue=issue)
    if block is None:
        raise PluginError(f"none of the plugins {', '.join(settings.plugins)} retrieves; add valve to `plugins`")
    if not is_welcome(store, lambda line: output.note(f"valve: {line}", style="yellow")):
        block = Context(text="", bank_hash=store.bank.hash)
    if not store.bank.items:
        output.note(f"{store.dir}: the bank holds no items yet, so there is nothing to inject")
    if json:
        items = [{"kind": kind, "name": name} for kind, name in block.items]
        output.emit_json({**plain(block), "items": items, "hash": block.hash, "simulation": simulation})
    else:
        output.verbatim(block.text)
